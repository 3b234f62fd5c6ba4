#include "linear.h"
#include "linear_parts.h"

namespace tritune {

namespace {

constexpr Index kTokenPiece = 12;   // tokens whose limbs and A x gradient are one piece of work
constexpr Index kColumnPiece = 64;  // rows or columns of the adapter's gradient in one piece

struct Backward {
    const TernaryKernels& kernels;
    const LoraKernels& floats;
    Panels panels;
    Blocking blocking;
    PanelMemory memory{};
    float* u = nullptr;  // [T, width]
    std::uint8_t* threads = nullptr;
    Index thread_bytes = 0, bytes = 0;
    Index tokens, rows, columns, width;

    Backward(const Pool& pool, Index tokens_, Index rows_, Index columns_, Index width_, std::uint8_t* scratch)
        : kernels(ternary_kernels(pool.isa())),
          floats(lora_kernels(pool.isa())),
          panels(kernels, tokens_, kLimbs, rows_),
          blocking(kernels, panels, columns_, rows_, pool.threads()),
          tokens(tokens_),
          rows(rows_),
          columns(columns_),
          width(width_) {
        Arena arena(scratch);
        memory.take(arena, panels);
        u = arena.take<float>(tokens * width);
        Arena counting(nullptr);
        thread_memory(counting);
        thread_bytes = counting.used();
        threads = arena.take<std::uint8_t>(thread_bytes * pool.threads());
        bytes = arena.used();
    }

    ThreadMemory thread_memory(Arena& arena) const {
        const Index dropped = Blocking::kMostPanelRows * kernels.tile_width, copied = width > 0 ? tokens * kColumnPiece : 0;
        ThreadMemory own;
        own.tiles = arena.take<std::uint8_t>(blocking.tile_bytes() * blocking.group);
        own.sums = arena.take<std::int32_t>(blocking.sums());
        own.factors = arena.take<float>(blocking.group * width * kernels.tile_width);
        own.block = arena.take<float>(dropped > copied ? dropped : copied);
        return own;
    }
    ThreadMemory of_thread(int thread) const {
        Arena arena(threads + thread * thread_bytes);
        return thread_memory(arena);
    }
};

// down_grad = factor * dy B for tokens [begin, end).
void lora_down_grad(const Backward& call, const LoraCall& lora, const float* dy, Index begin, Index end,
                    float* down_grad) {
    const Index width = lora.width(), rank = lora.rank;
    std::memset(down_grad + begin * width, 0, static_cast<std::size_t>((end - begin) * width) * sizeof(float));
    each_run(lora.slot, begin, end, [&](Index t0, Index t1, std::int32_t slot) {
        if (slot == 0) return;
        each_part(lora, 0, lora.rows, [&](Index part, Index n0, Index n1) {
            call.floats.product(t1 - t0, rank, n1 - n0, dy + t0 * call.rows + n0, call.rows, 1,
                                static_cast<const float*>(lora.b_of(slot, n0)), rank,
                                down_grad + t0 * width + part * rank, width);
        });
    });
    scale_down(lora, down_grad, begin, end, down_grad);
}

// dx += dropout(down_grad A) for tokens [begin, end) and columns [first, first + count) of one tile, of which `packed`
// says whose A `factors` holds.
void lora_dx(const Backward& call, const LoraCall& lora, const DropoutCall& drop, std::uint32_t hash, Index begin,
             Index end, Index first, Index count, const float* down_grad, float* factors, std::int32_t& packed,
             float* block, float* dx) {
    const Index width = lora.width(), stride = call.kernels.tile_width, columns = call.columns;
    each_run(lora.slot, begin, end, [&](Index t0, Index t1, std::int32_t slot) {
        if (slot == 0) return;
        if (packed != slot) {
            const float* a = static_cast<const float*>(lora.a_of(slot, 0)) + first;
            for (Index j = 0; j < width; ++j) {
                std::memcpy(factors + j * stride, a + j * columns, static_cast<std::size_t>(count) * sizeof(float));
            }
            packed = slot;
        }
        float* to = dx + t0 * columns + first;
        if (drop.state == nullptr) {
            call.floats.product(t1 - t0, count, width, down_grad + t0 * width, width, 1, factors, stride, to, columns);
            return;
        }
        std::memset(block, 0, static_cast<std::size_t>((t1 - t0) * stride) * sizeof(float));
        call.floats.product(t1 - t0, count, width, down_grad + t0 * width, width, 1, factors, stride, block, stride);
        for (Index t = t0; t < t1; ++t) {
            float* row = block + (t - t0) * stride;
            call.floats.dropout(row, count, hash, static_cast<std::uint32_t>(t * columns + first), drop.threshold,
                                drop.keep, row);
            call.floats.add(row, count, dx + t * columns + first);
        }
    });
}

// Columns [first, first + count) of f32 [T, stride], close together: [T, count].
void take_columns(const float* from, Index tokens, Index stride, Index first, Index count, float* to) {
    for (Index t = 0; t < tokens; ++t) {
        std::memcpy(to + t * count, from + t * stride + first, static_cast<std::size_t>(count) * sizeof(float));
    }
}

// Columns [first, first + count) of dA += down_gradᵀ dropout(x).
void lora_grad_a(const Backward& call, const DropoutCall& drop, std::uint32_t hash, const float* x,
                 const float* down_grad, Index first, Index count, float* block, float* grad) {
    const Index columns = call.columns;
    if (drop.state == nullptr) {
        take_columns(x, call.tokens, columns, first, count, block);
    } else {
        for (Index t = 0; t < call.tokens; ++t) {
            call.floats.dropout(x + t * columns + first, count, hash, static_cast<std::uint32_t>(t * columns + first),
                                drop.threshold, drop.keep, block + t * count);
        }
    }
    call.floats.product(call.width, count, call.tokens, down_grad, 1, call.width, block, count, grad + first, columns);
}

// Rows [first, first + count) of dB += dyᵀ u.
void lora_grad_b(const Backward& call, const LoraCall& lora, const float* dy, Index first, Index count, float* block,
                 float* grad) {
    take_columns(dy, call.tokens, call.rows, first, count, block);
    each_part(lora, first, first + count, [&](Index part, Index n0, Index n1) {
        call.floats.product(n1 - n0, lora.rank, call.tokens, block + n0 - first, 1, count, call.u + part * lora.rank,
                            call.width, grad + n0 * lora.rank, lora.rank);
    });
}

}  // namespace

void linear_backward(Pool& pool, const float* dy, const float* x, const std::uint8_t* lines, const float* row_scale,
                     const std::int32_t* part_starts, Index parts, Index tokens, Index rows, Index columns, float* dx,
                     Index rank, const float* a, const float* b, const float* lora_scale, const std::int32_t* slot,
                     const float* multiplier, const float* down, float* down_grad, float* grad_a, float* grad_b,
                     const std::uint32_t* state, std::uint32_t module, std::uint32_t threshold, float keep,
                     std::uint8_t* scratch) {
    if (tokens == 0) return;
    const LoraCall lora{rank, parts, rows, columns, false, a, b, lora_scale, part_starts, slot, multiplier};
    const DropoutCall drop{state, module, threshold, keep};
    const std::uint32_t hash = state == nullptr ? 0 : drop.hash();
    const Backward call(pool, tokens, rows, columns, lora.width(), scratch);
    const bool grads = rank > 0 && grad_a != nullptr;

    // What the products need: the limbs of dy * row_scale, and for LoRA down_grad and u.
    const Index limb_pieces = dx == nullptr ? 0 : call.panels.count;
    const Index token_pieces = rank == 0 ? 0 : ceil_div(tokens, kTokenPiece);
    pool.parallel_chunks(token_pieces + limb_pieces, 1, [&](Index begin, Index end) {
        for (Index piece = begin; piece < end; ++piece) {
            if (piece < token_pieces) {
                const Index t0 = piece * kTokenPiece, t1 = t0 + kTokenPiece < tokens ? t0 + kTokenPiece : tokens;
                lora_down_grad(call, lora, dy, t0, t1, down_grad);
                if (grads) scale_down(lora, down, t0, t1, call.u);
                continue;
            }
            const Index panel = piece - token_pieces, t0 = call.panels.first(panel), t1 = call.panels.first(panel + 1);
            for (Index t = t0; t < t1; ++t) {
                call.memory.units[t] = call.kernels.panel_floats(
                    dy + t * rows, row_scale, rows, (t - t0) * kLimbs, (t1 - t0) * kLimbs,
                    call.memory.panels + t0 * call.panels.bytes_a_token, call.memory.row_sums + t * kLimbs);
            }
        }
    });

    // The largest pieces first.
    const Index groups = dx == nullptr ? 0 : call.blocking.groups();
    const Index a_pieces = grads ? ceil_div(columns, kColumnPiece) : 0, b_pieces = grads ? ceil_div(rows, kColumnPiece) : 0;
    const Index row_lines = ceil_div(columns, kLineColumns);
    pool.parallel_chunks(groups + a_pieces + b_pieces, 1, [&](Index begin, Index end, int thread) {
        const ThreadMemory own = call.of_thread(thread);
        for (Index piece = begin; piece < end; ++piece) {
            if (piece >= groups + a_pieces) {
                const Index n = (piece - groups - a_pieces) * kColumnPiece;
                lora_grad_b(call, lora, dy, n, rows - n < kColumnPiece ? rows - n : kColumnPiece, own.block, grad_b);
                continue;
            }
            if (piece >= groups) {
                const Index k = (piece - groups) * kColumnPiece;
                lora_grad_a(call, drop, hash, x, down_grad, k, columns - k < kColumnPiece ? columns - k : kColumnPiece,
                            own.block, grad_a);
                continue;
            }
            std::int32_t packed[Blocking::kMostTiles] = {};
            multiply_group(call.kernels, call.blocking, call.panels, call.memory, lines, row_lines, true, piece, own,
                           [&](Index tile, Index k, Index count, Index t, Index some, const std::int32_t* sums) {
                               call.kernels.finish(sums, call.kernels.tile_width, call.memory.row_sums + t * kLimbs,
                                                   call.memory.units + t, nullptr, some, kLimbs, count,
                                                   dx + t * columns + k, columns, false);
                               if (rank == 0) return;
                               lora_dx(call, lora, drop, hash, t, t + some, k, count, down_grad,
                                       own.factors + tile * call.width * call.kernels.tile_width, packed[tile],
                                       own.block, dx);
                           });
        }
    });
}

Index linear_backward_scratch(const Pool& pool, Index tokens, Index rows, Index columns, Index width) {
    return tokens == 0 ? 0 : Backward(pool, tokens, rows, columns, width, nullptr).bytes;
}

}  // namespace tritune
