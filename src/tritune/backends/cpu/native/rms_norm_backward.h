// rms_norm_backward and glu_backward: gradients of rows.
#pragma once

#include "pool.h"

namespace tritune {

void rms_norm_backward(Pool& pool, const float* x, const float* gain, float eps, const float* dy, float* dx, bool accumulate,
                       Index rows, Index columns);

// dgate_up [rows, 2 * columns] may be gate_up; gain null: no norm.
void glu_backward(Pool& pool, const float* gate_up, int activation, const float* gain, float eps, const float* dy,
                  float* dgate_up, Index rows, Index columns);

}  // namespace tritune
