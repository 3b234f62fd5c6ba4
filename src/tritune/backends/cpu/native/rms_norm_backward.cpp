#include "rms_norm_backward.h"

#include "rows_kernels.h"

namespace tritune {

void rms_norm_backward(Pool& pool, const float* x, const float* gain, float eps, const float* dy, float* dx, bool accumulate,
                       Index rows, Index columns) {
    const RowKernels& kernels = row_kernels(pool.isa());
    pool.parallel(rows, [&](Index begin, Index end) {
        for (Index i = begin * columns; i < end * columns; i += columns) {
            kernels.norm_backward(x + i, gain, eps, dy + i, dx + i, accumulate, columns);
        }
    });
}

void glu_backward(Pool& pool, const float* gate_up, int activation, const float* gain, float eps, const float* dy,
                  float* dgate_up, Index rows, Index columns) {
    const RowKernels& kernels = row_kernels(pool.isa());
    pool.parallel(rows, [&](Index begin, Index end) {
        for (Index t = begin; t < end; ++t) {
            const float* gate = gate_up + t * 2 * columns;
            float* dgate = dgate_up + t * 2 * columns;
            kernels.glu_backward(gate, gate + columns, activation, gain, eps, dy + t * columns, dgate, dgate + columns, columns);
        }
    });
}

}  // namespace tritune
