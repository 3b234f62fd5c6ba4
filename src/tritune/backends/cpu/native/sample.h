// sample: draw a token from the logits of each sequence.
#pragma once

#include "pool.h"

namespace tritune {

// Columns of settings and state: SAMPLE_SETTINGS and SAMPLE_STATE of backends/base.py; sets are [sequences, words] of bits.
// scratch: float [threads, 2 * vocabulary + ceil(vocabulary / 64)].
void sample(Pool& pool, const float* logits, const float* settings, std::uint32_t* state, std::uint32_t* seen,
            const std::uint32_t* allowed, std::int32_t* token, float* logprob, float* scratch, Index sequences,
            Index vocabulary, Index words);

}  // namespace tritune
