#include "sampling_logits.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "head_kernels.h"
#include "isa.h"
#include "logits.h"
#include "rough_kernels.h"
#include "rows_kernels.h"

namespace tritune {

TRITUNE_KERNEL_TABLES(RoughKernels, rough_kernels)

namespace {

constexpr Index kPiece = 1024;           // table rows that a thread takes at a time; a multiple of 64
constexpr float kProbable = 6.2383246f;  // log 512: tokens of a probability above 1 / 512 are exact, for logprob's sake
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Where things lie in the scratch, in floats.
struct Layout {
    Index ranks, maxima, sorted, partial, found, planes, floats;

    Layout(const Pool& pool, Index rows, Index columns, Index vocabulary) {
        ranks = round_up(logits_scratch_bytes(pool, rows, columns) / 4, 16);  // at 0: x as the few_rows kernel wants it
        maxima = ranks + vocabulary;
        sorted = maxima + ceil_div(vocabulary, kMaximaBlock);
        partial = sorted + vocabulary;
        found = partial + 2 * ceil_div(vocabulary, kPiece);
        planes = round_up(found + vocabulary, 16);
        floats = planes + rows * rough_chunks(columns) * kRoughChunk / 2;
    }
};

struct Scratch {
    float* prepared;      // [rows, width of few_rows]
    float* ranks;         // [V], z as sample ranks it: with the penalty, -inf where it is not allowed
    float* maxima;        // [blocks] of ranks
    float* sorted;        // [V]
    float* partial;       // [pieces, 2]
    std::int32_t* found;  // [V], tokens
    std::int8_t* planes;  // [rows, 2 * width]

    Scratch(float* start, const Layout& at)
        : prepared(start),
          ranks(start + at.ranks),
          maxima(start + at.maxima),
          sorted(start + at.sorted),
          partial(start + at.partial),
          found(reinterpret_cast<std::int32_t*>(start + at.found)),
          planes(reinterpret_cast<std::int8_t*>(start + at.planes)) {}
};

// How `sample` will rank a row's logits.
struct Ranking {
    Index keep;                           // it looks at nothing below the keep-th; 0: at everything
    float penalty;                        // monotone, so that a bound of the logit is a bound of the rank
    const std::uint32_t *seen, *allowed;  // this row's sets; seen null: nobody is penalised

    float rank(float z, Index v) const {
        return seen && (seen[v / 32] >> (v % 32) & 1) != 0 ? (z > 0 ? z / penalty : z * penalty) : z;
    }
    bool may(Index v) const { return !allowed || (allowed[v / 32] >> (v % 32) & 1) != 0; }
};

Ranking ranking_of(const float* settings, const std::uint32_t* state, const std::uint32_t* seen,
                   const std::uint32_t* allowed) {
    const float temperature = settings[0], penalty = settings[3];
    const Index top_k = static_cast<Index>(state[0]);
    const Index keep = !(penalty > 0) || !std::isfinite(penalty) ? 0 : temperature > 0 ? top_k : 1;
    return {keep, penalty, penalty == 1.0f ? nullptr : seen, allowed};
}

// x in integers, and what the bound of a row is made of: with w' the rough row, x' the integers, fl the float32 product,
// |w'·x' - fl(w·x)| <= ‖w - w'‖ ‖x'‖ + ‖w‖ ‖x - x'‖ + γ ‖w‖ ‖x‖, where γ covers fl (n rounding errors) and our own few.
RoughInput integers_of(const float* x, Index columns, std::int8_t* planes) {
    constexpr float kMost = 127 * 256;
    const Index width = rough_chunks(columns) * kRoughChunk;
    float largest = 0;
    for (Index i = 0; i < columns; ++i) largest = std::max(largest, std::fabs(x[i]));
    RoughInput input{planes, 0, 0, largest / kMost, 0, 0};
    std::memset(planes, 0, static_cast<std::size_t>(2 * width));
    const float inverse = largest > 0 ? 1.0f / input.scale : 0;
    double norm = 0, rest = 0;
    for (Index i = 0; i < columns; ++i) {
        const int q = static_cast<int>(std::lrint(std::clamp(x[i] * inverse, -kMost, kMost)));
        const int high = (q + 128) >> 8, low = q - 256 * high;
        planes[i] = static_cast<std::int8_t>(high);
        planes[width + i] = static_cast<std::int8_t>(low);
        input.sum_high += high;
        input.sum_low += low;
        const double left = static_cast<double>(x[i]) - static_cast<double>(input.scale) * q;
        norm += static_cast<double>(x[i]) * x[i];
        rest += left * left;
    }
    norm = std::sqrt(norm);
    rest = std::sqrt(rest);
    const double gamma = static_cast<double>(columns + 64) * 0x1p-23;
    input.per_error = static_cast<float>((norm + rest) * (1 + 1e-5));
    input.per_norm = static_cast<float>((rest + gamma * (norm + rest)) * (1 + 1e-5));
    return input;
}

class Refiner {
public:
    Refiner(Pool& pool, const std::uint8_t* table, int kind, const RoughRows& rough, Index columns, Index vocabulary,
            Index prepared_width, const Scratch& scratch)
        : pool_(pool),
          head_(head_kernels(pool.isa())),
          rough_kernels_(rough_kernels(pool.isa())),
          rows_(row_kernels(pool.isa())),
          table_(table),
          kind_(kind),
          rough_(rough),
          columns_(columns),
          vocabulary_(vocabulary),
          width_(prepared_width),
          scratch_(scratch) {}

    // Makes z [V], rough values, exact wherever `sample` may look. False when it may look everywhere.
    bool refine(float* z, const float* prepared, const RoughInput& input, const Ranking& how, Index& read) {
        const Index blocks = ceil_div(vocabulary_, kMaximaBlock);
        if (how.keep > blocks) return false;
        const float *ranks = how.seen || how.allowed ? scratch_.ranks : z, probable = look_over(z, how) - kProbable;
        std::copy(scratch_.maxima, scratch_.maxima + blocks, scratch_.sorted);
        std::nth_element(scratch_.sorted, scratch_.sorted + (how.keep - 1), scratch_.sorted + blocks,
                         std::greater<float>());
        const float promising = scratch_.sorted[how.keep - 1];
        if (!(promising > -kInfinity) || !(promising < kInfinity)) return false;
        const Index count = collect(ranks, promising);
        if (count < how.keep) return false;
        pool_.parallel_chunks(count, 4, [&](Index begin, Index end) {
            for (Index i = begin; i < end; ++i) {
                const Index v = scratch_.found[i];
                exact(z, prepared, v);
                scratch_.sorted[i] = how.rank(z[v], v);
            }
        });
        std::nth_element(scratch_.sorted, scratch_.sorted + (how.keep - 1), scratch_.sorted + count,
                         std::greater<float>());
        const float known = scratch_.sorted[how.keep - 1];  // the keep-th rank is at least this
        if (!std::isfinite(known)) return false;
        // Ranks that differ by a rounding may be equal once they are divided by the temperature.
        const float least = known - std::fabs(known) * 0x1p-20f - kRoughTiny;
        std::atomic<Index> refined{0};
        pool_.parallel_chunks(vocabulary_, kPiece, [&](Index begin, Index end) {
            Index here = 0;
            for (Index first = begin; first < end; first += 32)
                here += refine_word(z, prepared, input, how, first, least, probable);
            refined.fetch_add(here, std::memory_order_relaxed);
        });
        read += count + refined.load();
        return true;
    }

private:
    void exact(float* z, const float* prepared, Index v) const {
        head_.few_rows[kind_](table_, columns_, prepared, width_, 1, z, vocabulary_, v, v + 1);
    }

    // Ranks, their maxima, and the log-sum-exp of z.
    float look_over(const float* z, const Ranking& how) const {
        const bool ranked = how.seen || how.allowed;
        const Index pieces = ceil_div(vocabulary_, kPiece);
        pool_.parallel_chunks(pieces, 1, [&](Index first, Index last) {
            for (Index piece = first; piece < last; ++piece) {
                const Index begin = piece * kPiece, end = std::min(vocabulary_, begin + kPiece);
                head_.highest_and_sum(z + begin, end - begin, scratch_.partial + 2 * piece,
                                      scratch_.partial + 2 * piece + 1);
                if (ranked) {
                    for (Index v = begin; v < end; ++v) scratch_.ranks[v] = how.may(v) ? how.rank(z[v], v) : -kInfinity;
                }
                rows_.block_maxima((ranked ? scratch_.ranks : z) + begin, scratch_.maxima + begin / kMaximaBlock,
                                   end - begin);
            }
        });
        float top = scratch_.partial[0];
        for (Index i = 1; i < pieces; ++i) top = std::max(top, scratch_.partial[2 * i]);
        double sum = 0;
        for (Index i = 0; i < pieces; ++i) {
            sum += std::exp(static_cast<double>(scratch_.partial[2 * i]) - top) *
                   static_cast<double>(scratch_.partial[2 * i + 1]);
        }
        return top + static_cast<float>(std::log(sum));
    }

    // Tokens of a rank of at least `least`.
    Index collect(const float* ranks, float least) const {
        Index count = 0;
        for (Index begin = 0; begin < vocabulary_; begin += kMaximaBlock) {
            if (scratch_.maxima[begin / kMaximaBlock] < least) continue;
            const Index end = std::min(vocabulary_, begin + kMaximaBlock);
            for (Index v = begin; v < end; ++v) {
                scratch_.found[count] = static_cast<std::int32_t>(v);
                count += ranks[v] >= least ? 1 : 0;
            }
        }
        return count;
    }

    // 32 tokens from `first`: those that may rank high enough, and those that are probable; how many they are.
    Index refine_word(float* z, const float* prepared, const RoughInput& input, const Ranking& how, Index first,
                      float least, float probable) const {
        const Index n = std::min<Index>(32, vocabulary_ - first), word = first / 32;
        std::uint32_t bits = rough_kernels_.possible(rough_, input, z + first, first, n, least, probable);
        if (how.seen) {
            for (std::uint32_t left = how.seen[word]; left != 0; left &= left - 1) {
                const int i = std::countr_zero(left);
                if (i >= n) break;
                const float most = how.rank(z[first + i] + rough_bound(rough_, input, first + i), first + i);
                const bool yes = !(most < least) || z[first + i] >= probable;
                bits = (bits & ~(1u << i)) | (yes ? 1u << i : 0u);
            }
        }
        if (how.allowed) {
            for (std::uint32_t left = bits & ~how.allowed[word]; left != 0; left &= left - 1) {
                if (!(z[first + std::countr_zero(left)] >= probable)) bits &= ~(left & (~left + 1));
            }
        }
        Index count = 0;
        for (; bits != 0; bits &= bits - 1, ++count) exact(z, prepared, first + std::countr_zero(bits));
        return count;
    }

    Pool& pool_;
    const HeadKernels& head_;
    const RoughKernels& rough_kernels_;
    const RowKernels& rows_;
    const std::uint8_t* table_;
    const int kind_;
    const RoughRows& rough_;
    const Index columns_, vocabulary_, width_;
    const Scratch& scratch_;
};

}  // namespace

Index rough_bytes(Index columns) { return rough_chunks(columns) * kRoughChunkBytes; }

Index sampling_logits_scratch_bytes(const Pool& pool, Index rows, Index columns, Index vocabulary) {
    return Layout(pool, rows, columns, vocabulary).floats * static_cast<Index>(sizeof(float));
}

void make_rough(Pool& pool, const std::uint8_t* table, int kind, std::uint8_t* codes, float* scales, float* errors,
                float* norms, Index columns, Index vocabulary) {
    const RoughKernels& kernels = rough_kernels(pool.isa());
    const Index row_bytes = columns * (kind == 0 ? 4 : 2);
    pool.parallel_chunks(vocabulary, 256, [&](Index begin, Index end) {
        for (Index v = begin; v < end; ++v) {
            kernels.pack[kind](table + v * row_bytes, columns, codes + v * rough_bytes(columns), scales + v, errors + v,
                               norms + v);
        }
    });
}

void sampling_logits(Pool& pool, const float* x, const std::uint8_t* table, int kind, const std::uint8_t* codes,
                     const float* scales, const float* errors, const float* norms, float* out, const float* settings,
                     const std::uint32_t* state, const std::uint32_t* seen, const std::uint32_t* allowed, Index rows,
                     Index columns, Index vocabulary, Index words, float* scratch, std::int32_t* counts) {
    const HeadKernels& kernels = head_kernels(pool.isa());
    const Scratch parts(scratch, Layout(pool, rows, columns, vocabulary));
    const auto everything = [&] { logits(pool, x, table, kind, out, rows, columns, vocabulary, parts.prepared); };
    if (rows > kFewRows) return everything();
    Ranking how[kFewRows];
    for (Index r = 0; r < rows; ++r) {
        how[r] = ranking_of(settings + 4 * r, state + 4 * r, seen + r * words, allowed ? allowed + r * words : nullptr);
        if (how[r].keep == 0) return everything();
    }
    const RoughRows rough{codes, scales, errors, norms};
    const Index width = round_up(columns, 2 * kernels.lane);
    RoughInput inputs[kFewRows];
    for (Index r = 0; r < rows; ++r) {
        kernels.prepare[kind](x + r * columns, columns, parts.prepared + r * width);
        inputs[r] = integers_of(x + r * columns, columns, parts.planes + r * 2 * rough_chunks(columns) * kRoughChunk);
        if (!std::isfinite(inputs[r].per_error) || !std::isfinite(inputs[r].per_norm)) return everything();
    }
    pool.parallel_chunks(vocabulary, kPiece, [&](Index begin, Index end) {
        rough_kernels(pool.isa()).dots(rough, columns, inputs, rows, out, vocabulary, begin, end);
    });
    Refiner refiner(pool, table, kind, rough, columns, vocabulary, width, parts);
    Index read = 0;
    for (Index r = 0; r < rows; ++r) {
        if (!refiner.refine(out + r * vocabulary, parts.prepared + r * width, inputs[r], how[r], read))
            return everything();
    }
    if (counts) {
        counts[0] += static_cast<std::int32_t>(rows);
        counts[1] += static_cast<std::int32_t>(std::min<Index>(read, std::numeric_limits<std::int32_t>::max() / 2));
    }
}

}  // namespace tritune
