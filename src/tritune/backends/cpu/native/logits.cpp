#include "logits.h"

#include "head_kernels.h"
#include "isa.h"

namespace tritune {

TRITUNE_KERNEL_TABLES(HeadKernels, head_kernels)

namespace {

constexpr int kInt8 = 3;             // of the kinds of vectors.h
constexpr Index kGrain = 64;         // table rows
constexpr Index kStreamRows = 4096;  // table rows that a thread takes at a time

Index prepared_width(Index columns, const HeadKernels& kernels) { return round_up(columns, 2 * kernels.lane); }
Index panel_floats(Index rows, const HeadKernels& kernels) { return (kPanelDepth + rows) * kernels.tile; }
Index backward_floats(Index rows) { return (kBackRows + rows) * kBackStride; }

void products(Pool& pool, const float* x, const void* table, int kind, const float* scales, float* out, Index rows,
              Index columns, Index vocabulary, float* scratch) {
    const HeadKernels& kernels = head_kernels(pool.isa());
    const auto scale = [&](Index begin, Index end) {
        for (Index r = 0; scales && r < rows; ++r) {
            for (Index v = begin; v < end; ++v) out[r * vocabulary + v] *= scales[v];
        }
    };
    if (rows <= kFewRows) {
        const Index width = prepared_width(columns, kernels);
        for (Index r = 0; r < rows; ++r) kernels.prepare[kind](x + r * columns, columns, scratch + r * width);
        pool.parallel_chunks(vocabulary, kStreamRows, [&](Index begin, Index end) {
            kernels.few_rows[kind](table, columns, scratch, width, rows, out, vocabulary, begin, end);
            scale(begin, end);
        });
        return;
    }
    pool.parallel_chunks(vocabulary, kGrain * 16, [&](Index begin, Index end, int thread) {
        float* panel = scratch + thread * panel_floats(rows, kernels);
        for (Index v = begin; v < end; v += kernels.tile) {
            const Index last = v + kernels.tile < end ? v + kernels.tile : end;
            kernels.panel[kind](table, columns, x, rows, out, vocabulary, v, last, panel,
                                panel + kPanelDepth * kernels.tile);
        }
        scale(begin, end);
    });
}

void gradients(Pool& pool, const float* dlogits, const void* table, int kind, const float* scales, float* dx,
               Index rows, Index columns, Index vocabulary, float* scratch) {
    const HeadKernels& kernels = head_kernels(pool.isa());
    pool.parallel(
        columns,
        [&](Index begin, Index end, int thread) {
            float* own = scratch + thread * backward_floats(rows);
            kernels.backward[kind](dlogits, table, scales, dx, rows, vocabulary, columns, begin, end, own,
                                   own + kBackRows * kBackStride);
        },
        2 * kernels.lane);
}

}  // namespace

Index logits_scratch_bytes(const Pool& pool, Index rows, Index columns) {
    const HeadKernels& kernels = head_kernels(pool.isa());
    const Index floats =
        rows <= kFewRows ? rows * prepared_width(columns, kernels) : pool.threads() * panel_floats(rows, kernels);
    return floats * static_cast<Index>(sizeof(float));
}

Index logits_backward_scratch_bytes(const Pool& pool, Index rows) {
    return pool.threads() * backward_floats(rows) * static_cast<Index>(sizeof(float));
}

void logits(Pool& pool, const float* x, const std::uint8_t* table, int kind, float* out, Index rows, Index columns,
            Index vocabulary, float* scratch) {
    products(pool, x, table, kind, nullptr, out, rows, columns, vocabulary, scratch);
}

void logits_backward(Pool& pool, const float* dlogits, const std::uint8_t* table, int kind, float* dx, Index rows,
                     Index columns, Index vocabulary, float* scratch) {
    gradients(pool, dlogits, table, kind, nullptr, dx, rows, columns, vocabulary, scratch);
}

void int8_logits(Pool& pool, const float* x, const std::int8_t* table, const float* scales, float* out, Index rows,
                 Index columns, Index vocabulary, float* scratch) {
    products(pool, x, table, kInt8, scales, out, rows, columns, vocabulary, scratch);
}

void int8_logits_backward(Pool& pool, const float* dlogits, const std::int8_t* table, const float* scales, float* dx,
                          Index rows, Index columns, Index vocabulary, float* scratch) {
    gradients(pool, dlogits, table, kInt8, scales, dx, rows, columns, vocabulary, scratch);
}

}  // namespace tritune
