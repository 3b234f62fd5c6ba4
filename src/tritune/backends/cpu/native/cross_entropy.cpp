#include "cross_entropy.h"

#include <cmath>
#include <cstring>

#include "head_kernels.h"

namespace tritune {

Index cross_entropy_scratch_bytes(Index rows, Index vocabulary) {
    return rows * (ceil_div(vocabulary, kChunk) + 1) * 2 * static_cast<Index>(sizeof(float));
}

// A row is cut into pieces of fixed size, so one row is work for several threads and the sums do not depend on how many.
void cross_entropy(Pool& pool, float* logits, const std::int32_t* targets, const float* coefficients, float* nll,
                   Index rows, Index vocabulary, bool backward, float* scratch) {
    const HeadKernels& kernels = head_kernels(pool.isa());
    const Index pieces = ceil_div(vocabulary, kChunk);
    float* partial = scratch;                     // [rows, pieces, 2]: highest, sum
    float* totals = scratch + rows * pieces * 2;  // [rows, 2]: highest, factor of the gradient
    const auto each_piece = [&](auto&& fn) {
        pool.parallel_chunks(rows * pieces, 4, [&](Index begin, Index end) {
            for (Index i = begin; i < end; ++i) {
                const Index row = i / pieces, start = i % pieces * kChunk;
                fn(row, i, logits + row * vocabulary + start,
                   vocabulary - start < kChunk ? vocabulary - start : kChunk);
            }
        });
    };
    each_piece([&](Index row, Index i, const float* z, Index n) {
        if (targets[row] >= 0) kernels.highest_and_sum(z, n, partial + 2 * i, partial + 2 * i + 1);
    });
    for (Index row = 0; row < rows; ++row) {
        nll[row] = 0;
        totals[2 * row] = totals[2 * row + 1] = 0;
        if (targets[row] < 0) continue;
        const float* of_row = partial + row * pieces * 2;
        float top = of_row[0];
        for (Index i = 1; i < pieces; ++i) top = of_row[2 * i] > top ? of_row[2 * i] : top;
        double sum = 0;
        for (Index i = 0; i < pieces; ++i)
            sum += std::exp(static_cast<double>(of_row[2 * i]) - top) * of_row[2 * i + 1];
        const double distance = static_cast<double>(top) - logits[row * vocabulary + targets[row]];
        nll[row] = static_cast<float>(distance + std::log(sum));
        totals[2 * row] = top;
        totals[2 * row + 1] = static_cast<float>(coefficients[row] / sum);
    }
    if (!backward) return;
    each_piece([&](Index row, Index, float* z, Index n) {
        if (targets[row] < 0) {
            std::memset(z, 0, static_cast<std::size_t>(n) * sizeof(float));
        } else {
            kernels.softmax(z, n, totals[2 * row], totals[2 * row + 1]);
        }
    });
    for (Index row = 0; row < rows; ++row) {
        if (targets[row] >= 0) logits[row * vocabulary + targets[row]] -= coefficients[row];
    }
}

}  // namespace tritune
