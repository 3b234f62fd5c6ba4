#include "rms_norm_quant.h"

#include "rows_kernels.h"

namespace tritune {

void rms_norm_quant(Pool& pool, const float* x, const float* gain, float eps, float* normed, std::int8_t* codes,
                    float* scales, float* scratch, Index rows, Index columns) {
    const RowKernels& kernels = row_kernels(pool.isa());
    pool.parallel(rows, [&](Index begin, Index end, int share) {
        for (Index t = begin; t < end; ++t) {
            float* y = normed != nullptr ? normed + t * columns : scratch + share * columns;
            std::int8_t* row_codes = codes != nullptr ? codes + t * columns : nullptr;
            float* scale = scales != nullptr ? scales + t : nullptr;
            kernels.norm_quant(x + t * columns, gain, eps, y, row_codes, scale, columns);
        }
    });
}

void glu_norm_quant(Pool& pool, const float* gate_up, int activation, const float* gain, float eps, float* normed,
                    std::int8_t* codes, float* scales, float* scratch, Index rows, Index columns) {
    const RowKernels& kernels = row_kernels(pool.isa());
    pool.parallel(rows, [&](Index begin, Index end, int share) {
        for (Index t = begin; t < end; ++t) {
            const float* gate = gate_up + t * 2 * columns;
            float* z = normed != nullptr ? normed + t * columns : scratch + share * columns;
            kernels.glu(gate, gate + columns, activation, z, columns);
            std::int8_t* row_codes = codes != nullptr ? codes + t * columns : nullptr;
            float* scale = scales != nullptr ? scales + t : nullptr;
            kernels.norm_quant(z, gain, eps, z, row_codes, scale, columns);
        }
    });
}

}  // namespace tritune
