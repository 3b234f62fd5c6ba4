#include "embed.h"

#include <cstring>

#include "rows_kernels.h"

namespace tritune {

void embed(Pool& pool, const std::int32_t* tokens, const std::uint8_t* table, int format, float* x, Index count, Index rows,
           Index columns) {
    const RowKernels& kernels = row_kernels(pool.isa());
    const Index stride = columns * (format == kF32 ? 4 : 2);
    pool.parallel(count, [&](Index begin, Index end) {
        for (Index t = begin; t < end; ++t) {
            const Index token = tokens[t];
            float* row = x + t * columns;
            if (token >= 0 && token < rows) {
                kernels.widen(table + token * stride, format, row, columns);
            } else {
                std::memset(row, 0, static_cast<std::size_t>(columns) * sizeof(float));
            }
        }
    });
}

}  // namespace tritune
