// rms_norm_quant and glu_norm_quant: (GLU,) RMS norm and int8 rounding of rows.
#pragma once

#include "pool.h"

namespace tritune {

// Null: gain, no norm; normed, not wanted; codes and scales, no rounding. scratch: [threads, columns], read if normed is
// null.
void rms_norm_quant(Pool& pool, const float* x, const float* gain, float eps, float* normed, std::int8_t* codes,
                    float* scales, float* scratch, Index rows, Index columns);

// The same of z = act(gate) * up, gate_up [rows, 2 * columns].
void glu_norm_quant(Pool& pool, const float* gate_up, int activation, const float* gain, float eps, float* normed,
                    std::int8_t* codes, float* scales, float* scratch, Index rows, Index columns);

}  // namespace tritune
