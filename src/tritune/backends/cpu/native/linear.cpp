#include "linear.h"

#include "linear_parts.h"

namespace tritune {

namespace {

constexpr Index kSerial = 1 << 14;  // panel bytes that are not worth waking a thread for
constexpr Index kShortRun = 3;      // tokens of one adapter for which its B is not worth transposing
constexpr Index kLoraBlocks = 8;    // blocks of 16 outputs after which LoRA is added to few tokens
constexpr Index kPieces = 8;        // a thread's share of a matrix is handed out in about so many pieces

struct Forward {
    const TernaryKernels& kernels;
    const LoraKernels& floats;
    Panels panels;
    Blocking blocking;
    PanelMemory memory{};
    float* u = nullptr;        // [T, width]
    float* dropped = nullptr;  // [T, K]
    std::uint8_t* threads = nullptr;
    Index thread_bytes = 0;
    Index tokens, rows, columns, width;
    Index bytes = 0;  // of scratch

    Forward(const Pool& pool, Index tokens_, Index rows_, Index columns_, Index width_, bool of_floats, bool dropout,
            std::uint8_t* scratch)
        : kernels(ternary_kernels(pool.isa())),
          floats(lora_kernels(pool.isa())),
          panels(kernels, tokens_, of_floats ? kLimbs : 1, columns_),
          blocking(kernels, panels, rows_, columns_, pool.threads()),
          tokens(tokens_),
          rows(rows_),
          columns(columns_),
          width(width_) {
        Arena arena(scratch);
        memory.take(arena, panels);
        u = arena.take<float>(tokens * width);
        dropped = arena.take<float>(dropout ? tokens * columns : 0);
        Arena counting(nullptr);
        thread_memory(counting);
        thread_bytes = counting.used();
        threads = arena.take<std::uint8_t>(thread_bytes * pool.threads());
        bytes = arena.used();
    }

    ThreadMemory thread_memory(Arena& arena) const {
        ThreadMemory own;
        const bool few = panels.count == 1;
        own.tiles = arena.take<std::uint8_t>(few ? 0 : blocking.tile_bytes() * blocking.group);
        own.sums = arena.take<std::int32_t>(blocking.sums());
        own.factors = arena.take<float>(width * (few ? kLoraBlocks * kLineRows : blocking.group * kernels.tile_width));
        return own;
    }
    ThreadMemory of_thread(int thread) const {
        Arena arena(threads + thread * thread_bytes);
        return thread_memory(arena);
    }
};

// The panels' rows of tokens [begin, end) of one panel.
void fill_panel(const Forward& call, const float* x, const std::int8_t* codes, const float* scales, Index panel) {
    const Index begin = call.panels.first(panel), end = call.panels.first(panel + 1), limbs = call.panels.limbs;
    std::int8_t* to = call.memory.panels + begin * call.panels.bytes_a_token;
    for (Index t = begin; t < end; ++t) {
        std::int32_t* sums = call.memory.row_sums + t * limbs;
        const Index row = (t - begin) * limbs, rows = (end - begin) * limbs;
        if (codes == nullptr) {
            call.memory.units[t] =
                call.kernels.panel_floats(x + t * call.columns, nullptr, call.columns, row, rows, to, sums);
        } else {
            *sums = call.kernels.panel_codes(codes + t * call.columns, call.columns, row, rows, to);
            call.memory.units[t] = 1.0f / scales[t];
        }
    }
}

// down = A x and u = down * factor for tokens [begin, end) and rows [first, last) of A.
void lora_down(const Forward& call, const LoraCall& lora, const float* x, Index begin, Index end, Index first,
               Index last, float* down) {
    const Index width = lora.width(), columns = call.columns;
    each_run(lora.slot, begin, end, [&](Index t0, Index t1, std::int32_t slot) {
        if (slot > 0) {
            call.floats.rows_by_rows(t1 - t0, last - first, columns, x + t0 * columns, columns, lora.a_of(slot, first),
                                     lora.half, columns, down + t0 * width + first, width);
        }
        for (Index t = t0; t < t1; ++t) {
            for (Index j = first; j < last; ++j) {
                float& d = down[t * width + j];
                if (slot == 0) d = 0.0f;
                call.u[t * width + j] = slot == 0 ? 0.0f : d * lora.factor(t, j / lora.rank);
            }
        }
    });
}

// y += B u for tokens [begin, end) and outputs [first, first + count), of which `packed` says whose Bᵀ `factors` holds, in
// rows of `stride`.
void lora_up(const Forward& call, const LoraCall& lora, Index begin, Index end, Index first, Index count,
             float* factors, Index stride, std::int32_t& packed, float* y) {
    const Index width = lora.width();
    each_run(lora.slot, begin, end, [&](Index t0, Index t1, std::int32_t slot) {
        if (slot == 0) return;
        const bool short_run = t1 - t0 <= kShortRun;
        if (!short_run && packed != slot) {
            call.floats.transpose(lora.b_of(slot, first), lora.half, count, lora.rank, factors, stride);
            packed = slot;
        }
        each_part(lora, first, first + count, [&](Index part, Index n0, Index n1) {
            const float* u = call.u + t0 * width + part * lora.rank;
            float* to = y + t0 * call.rows + n0;
            if (!short_run) {
                call.floats.product(t1 - t0, n1 - n0, lora.rank, u, width, 1, factors + n0 - first, stride, to,
                                    call.rows);
                return;
            }
            for (Index t = 0; t < t1 - t0; ++t) {
                call.floats.add_short_rows(n1 - n0, lora.rank, lora.b_of(slot, n0), lora.half, u + t * width,
                                           to + t * call.rows);
            }
        });
    });
}

// What comes before the product: panels, dropped x, A x.
void prepare(Pool& pool, const Forward& call, const LoraCall& lora, const DropoutCall& drop, const float* x,
             const std::int8_t* codes, const float* scales, float* down) {
    const float* lora_x = x;
    if (lora.rank > 0 && drop.state != nullptr) {
        const std::uint32_t hash = drop.hash();
        pool.parallel(call.tokens, [&](Index begin, Index end) {
            call.floats.dropout(x + begin * call.columns, (end - begin) * call.columns, hash,
                                static_cast<std::uint32_t>(begin * call.columns), drop.threshold, drop.keep,
                                call.dropped + begin * call.columns);
        });
        lora_x = call.dropped;
    }
    if (lora.rank == 0 && call.tokens * call.panels.bytes_a_token <= kSerial) {
        for (Index panel = 0; panel < call.panels.count; ++panel) fill_panel(call, x, codes, scales, panel);
        return;
    }
    // Few tokens: a piece is a few rows of A for all of them; many: all of A for a few of them.
    const bool few = call.tokens < 64;
    const Index token_piece = few ? call.tokens : 24, row_piece = few ? ceil_div(call.width, 4 * pool.threads()) * 2 : call.width;
    const Index row_pieces = lora.rank == 0 ? 0 : ceil_div(call.width, row_piece);
    const Index lora_pieces = row_pieces * ceil_div(call.tokens, token_piece);
    pool.parallel_chunks(lora_pieces + call.panels.count, 1, [&](Index begin, Index end) {
        for (Index piece = begin; piece < end; ++piece) {
            if (piece >= lora_pieces) {
                fill_panel(call, x, codes, scales, piece - lora_pieces);
                continue;
            }
            const Index t = piece / row_pieces * token_piece, j = piece % row_pieces * row_piece;
            lora_down(call, lora, lora_x, t, t + token_piece < call.tokens ? t + token_piece : call.tokens, j,
                      j + row_piece < call.width ? j + row_piece : call.width, down);
        }
    });
}

// B's rows for outputs [first, first + count), while the ternary product waits for memory.
void prefetch_b(const LoraCall& lora, Index tokens, Index first, Index count) {
    const Index bytes = count * lora.rank * (lora.half ? 2 : 4);
    each_run(lora.slot, 0, tokens, [&](Index, Index, std::int32_t slot) {
        if (slot == 0) return;
        const auto* b = static_cast<const std::uint8_t*>(lora.b_of(slot, first));
        for (Index i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(b + i);
    });
}

// One panel: straight from the packed lines.
void multiply_few(Pool& pool, const Forward& call, const LoraCall& lora, const std::int8_t* panel,
                  const std::uint8_t* lines, const float* row_scale, float* y, bool accumulate) {
    const Index blocks = ceil_div(call.rows, kLineRows), row_lines = ceil_div(call.columns, kLineColumns);
    const Index limbs = call.panels.limbs, piece = ceil_div(blocks, kPieces * pool.threads());
    pool.parallel_chunks(blocks, piece, [&](Index begin, Index end, int thread) {
        const ThreadMemory own = call.of_thread(thread);
        for (Index first = begin; first < end; first += kLoraBlocks) {
            const Index last = first + kLoraBlocks < end ? first + kLoraBlocks : end;
            for (Index i = first; i < last; ++i) {
                const Index n = i * kLineRows, count = call.rows - n < kLineRows ? call.rows - n : kLineRows;
                __builtin_prefetch(row_scale + n + kLineRows);
                if (lora.rank > 0) prefetch_b(lora, call.tokens, n, count);
                call.kernels.multiply_lines(lines + i * row_lines * kLineBytes, row_lines, panel, call.tokens * limbs,
                                            own.sums);
                call.kernels.finish(own.sums, kLineRows, call.memory.row_sums, call.memory.units, row_scale + n,
                                    call.tokens, limbs, count, y + n, call.rows, accumulate);
            }
            if (lora.rank == 0) continue;
            const Index n = first * kLineRows, stop = last * kLineRows < call.rows ? last * kLineRows : call.rows;
            std::int32_t packed = 0;
            lora_up(call, lora, 0, call.tokens, n, stop - n, own.factors, kLoraBlocks * kLineRows, packed, y);
        }
    });
}

void multiply_many(Pool& pool, const Forward& call, const LoraCall& lora, const std::uint8_t* lines,
                   const float* row_scale, float* y, bool accumulate) {
    const Index row_lines = ceil_div(call.columns, kLineColumns), limbs = call.panels.limbs;
    pool.parallel_chunks(call.blocking.groups(), 1, [&](Index begin, Index end, int thread) {
        const ThreadMemory own = call.of_thread(thread);
        for (Index group = begin; group < end; ++group) {
            std::int32_t packed[Blocking::kMostTiles] = {};
            multiply_group(call.kernels, call.blocking, call.panels, call.memory, lines, row_lines, false, group, own,
                           [&](Index tile, Index n, Index count, Index t, Index tokens, const std::int32_t* sums) {
                               call.kernels.finish(sums, call.kernels.tile_width, call.memory.row_sums + t * limbs,
                                                   call.memory.units + t, row_scale + n, tokens, limbs, count,
                                                   y + t * call.rows + n, call.rows, accumulate);
                               if (lora.rank == 0) return;
                               lora_up(call, lora, t, t + tokens, n, count,
                                       own.factors + tile * call.width * call.kernels.tile_width,
                                       call.kernels.tile_width, packed[tile], y);
                           });
        }
    });
}

}  // namespace

void linear(Pool& pool, const float* x, const std::int8_t* codes, const float* scales, const std::uint8_t* lines,
            const float* row_scale, const std::int32_t* part_starts, Index parts, Index tokens, Index rows,
            Index columns, float* y, bool accumulate, Index rank, bool half, const void* a, const void* b,
            const float* lora_scale, const std::int32_t* slot, const float* multiplier, float* down,
            const std::uint32_t* state, std::uint32_t module, std::uint32_t threshold, float keep,
            std::uint8_t* scratch) {
    if (tokens == 0) return;
    const LoraCall lora{rank, parts, rows, columns, half, a, b, lora_scale, part_starts, slot, multiplier};
    const DropoutCall drop{state, module, threshold, keep};
    const Forward call(pool, tokens, rows, columns, lora.width(), codes == nullptr, state != nullptr, scratch);
    prepare(pool, call, lora, drop, x, codes, scales, down);
    if (call.panels.count == 1) {
        multiply_few(pool, call, lora, call.memory.panels, lines, row_scale, y, accumulate);
    } else {
        multiply_many(pool, call, lora, lines, row_scale, y, accumulate);
    }
}

Index linear_scratch(const Pool& pool, Index tokens, Index rows, Index columns, Index width, bool floats, bool dropout) {
    return tokens == 0 ? 0 : Forward(pool, tokens, rows, columns, width, floats, dropout, nullptr).bytes;
}

}  // namespace tritune
