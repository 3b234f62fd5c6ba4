#include "sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "hash.h"
#include "rows_kernels.h"
#include "vector_math.h"

namespace tritune {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The candidates of top-k and top-p, without sorting the vocabulary: most tokens are out of the question, and the largest
// of every block of them tells so.
class Likeliest {
public:
    // scratch: [n + blocks]
    Likeliest(const RowKernels& kernels, const float* z, float top, Index n, float* scratch)
        : kernels_(kernels), z_(z), top_(top), n_(n), candidates_(scratch), maxima_(scratch + n) {
        kernels.block_maxima(z, maxima_, n);
    }

    // The z of the k-th largest token, 0 < k < n.
    float top_k(Index k) {
        const Index blocks = ceil_div(n_, kMaximaBlock);
        float least = -kInfinity;
        if (k <= blocks) {  // k blocks hold a token that is not below the k-th largest maximum
            std::copy(maxima_, maxima_ + blocks, candidates_);
            std::nth_element(candidates_, candidates_ + (k - 1), candidates_ + blocks, std::greater<float>());
            least = candidates_[k - 1];
        }
        const Index found = collect(least);
        if (found < k) return -kInfinity;  // NaN among the logits
        std::nth_element(candidates_, candidates_ + (k - 1), candidates_ + found, std::greater<float>());
        return candidates_[k - 1];
    }

    // The z of the last token of the smallest set of likeliest tokens, among those at `floor` or above, whose share of
    // their probability reaches p.
    float top_p(double p, float floor) {
        const bool all = floor == std::numeric_limits<float>::lowest();
        Index found = all ? 0 : collect(floor);
        const double whole = all ? kernels_.sum_exp(z_, top_, n_) : kernels_.sum_exp(candidates_, top_, found);
        for (const float reach : {4.0f, 8.0f, 12.0f, 16.0f, kInfinity}) {  // in logits below the largest
            if (!all) break;
            found = collect(std::max(floor, top_ - reach));
            if (kernels_.sum_exp(candidates_, top_, found) > p * whole) break;
        }
        return reaching(p * whole, found);
    }

private:
    // The z of at least `least`, in any order.
    Index collect(float least) {
        Index found = 0;
        for (Index begin = 0; begin < n_; begin += kMaximaBlock) {
            if (maxima_[begin / kMaximaBlock] < least) continue;
            const Index end = std::min(n_, begin + kMaximaBlock);
            for (Index v = begin; v < end; ++v) {
                candidates_[found] = z_[v];
                found += z_[v] >= least ? 1 : 0;
            }
        }
        return found;
    }

    // Among the candidates, from the largest on: where their mass reaches `wanted`. Halves that do not matter are never
    // sorted.
    float reaching(double wanted, Index found) {
        constexpr Index kFew = 32;
        float *begin = candidates_, *end = candidates_ + found;
        double mass = 0;
        while (end - begin > kFew) {
            float* middle = begin + (end - begin) / 2;
            std::nth_element(begin, middle, end, std::greater<float>());
            const double upper = kernels_.sum_exp(begin, top_, middle - begin);
            if (mass + upper >= wanted) {
                end = middle;
            } else {
                mass += upper;
                begin = middle;
            }
        }
        std::sort(begin, end, std::greater<float>());
        for (; begin < end; ++begin) {
            mass += static_cast<double>(exp_float(*begin - top_));
            if (mass >= wanted) return *begin;
        }
        return found > 0 ? end[-1] : -kInfinity;
    }

    const RowKernels& kernels_;
    const float* z_;
    const float top_;
    const Index n_;
    float* candidates_;
    float* maxima_;
};

struct Settings {
    float temperature, top_p, min_p, penalty;
    std::uint32_t top_k, seed, draw;
};

// The least z that is kept.
double threshold(const RowKernels& kernels, const float* z, float top, Index n, const Settings& how, float* scratch) {
    float floor = std::numeric_limits<float>::lowest();
    const bool by_rank = how.top_k > 0 && static_cast<Index>(how.top_k) < n, by_mass = how.top_p < 1.0f;
    if (by_rank || by_mass) {
        Likeliest likeliest(kernels, z, top, n, scratch);
        if (by_rank) floor = std::max(floor, likeliest.top_k(how.top_k));
        if (by_mass) floor = std::max(floor, likeliest.top_p(static_cast<double>(how.top_p), floor));
    }
    if (how.min_p <= 0.0f) return floor;
    return std::max(static_cast<double>(floor), static_cast<double>(top) + std::log(static_cast<double>(how.min_p)));
}

// The token of the largest z + gumbel, gumbel = -log(-log(u)), among those with z >= floor. Two logarithms a token would
// be most of the op's time. A token can beat `best` only if -log(u) < e^(z - best), and 1 - u <= -log(u), so
// 1 - u < e^(z - top) * e^(top - best) is asked first; few tokens pass.
Index draw(const RowKernels& kernels, const float* z, float top, Index n, const Settings& how, double floor) {
    constexpr Index kPiece = 512;
    std::uint32_t upper24[kPiece];
    float weight[kPiece];
    const std::uint32_t seed_hash = hash_next(hash_u32(how.seed), how.draw);
    Index token = 0;
    double best = -std::numeric_limits<double>::infinity();
    float chance = 1e30f;  // e^(top - best), with a margin for rounding
    for (Index begin = 0; begin < n; begin += kPiece) {
        const Index count = std::min(kPiece, n - begin);
        kernels.draw_words(z + begin, top, seed_hash, static_cast<std::uint32_t>(begin), upper24, weight, count);
        for (Index i = 0; i < count; ++i) {
            const float below = static_cast<float>(0xffffffu - upper24[i]) * 0x1p-24f;  // not more than 1 - u
            if (below >= weight[i] * chance || !(static_cast<double>(z[begin + i]) >= floor)) continue;
            const double u = (static_cast<double>(upper24[i]) + 0.5) * 0x1p-24;
            const double score = static_cast<double>(z[begin + i]) - std::log(-std::log(u));
            if (score > best) {
                best = score;
                token = begin + i;
                chance = static_cast<float>(std::exp(static_cast<double>(top) - best)) * 1.001f;
            }
        }
    }
    return token;
}

void sample_row(const RowKernels& kernels, const float* logits, const Settings& how, const std::uint32_t* seen,
                const std::uint32_t* allowed, float* scratch, Index n, Index& token, float& logprob) {
    const float top_logit = kernels.maximum(logits, n);
    const double lse = std::log(kernels.sum_exp(logits, top_logit, n)) + static_cast<double>(top_logit);
    const bool greedy = !(how.temperature > 0.0f);
    const float* z = logits;
    if (!greedy || how.penalty != 1.0f || allowed != nullptr) {
        kernels.warp(logits, seen, allowed, how.penalty, how.temperature, scratch, n);
        z = scratch;
    }
    const float top = kernels.maximum(z, n);
    if (greedy) {
        token = std::find(z, z + n, top) - z;
        if (token == n) token = 0;  // NaN alone
    } else {
        token = draw(kernels, z, top, n, how, threshold(kernels, z, top, n, how, scratch + n));
    }
    logprob = static_cast<float>(static_cast<double>(logits[token]) - lse);
}

}  // namespace

void sample(Pool& pool, const float* logits, const float* settings, std::uint32_t* state, std::uint32_t* seen,
            const std::uint32_t* allowed, std::int32_t* token, float* logprob, float* scratch, Index sequences,
            Index vocabulary, Index words) {
    const RowKernels& kernels = row_kernels(pool.isa());
    const Index scratch_floats = 2 * vocabulary + ceil_div(vocabulary, kMaximaBlock);
    pool.parallel(sequences, [&](Index begin, Index end, int share) {
        for (Index s = begin; s < end; ++s) {
            const float* f = settings + 4 * s;
            std::uint32_t* u = state + 4 * s;
            Index drawn = 0;
            sample_row(kernels, logits + s * vocabulary, {f[0], f[1], f[2], f[3], u[0], u[1], u[2]}, seen + s * words,
                       allowed != nullptr ? allowed + s * words : nullptr, scratch + share * scratch_floats, vocabulary,
                       drawn, logprob[s]);
            token[s] = static_cast<std::int32_t>(drawn);
            seen[s * words + drawn / 32] |= 1u << (drawn % 32);
            u[2] += 1;
        }
    });
}

}  // namespace tritune
