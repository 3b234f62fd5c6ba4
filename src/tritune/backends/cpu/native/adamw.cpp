#include "adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rows_kernels.h"

namespace tritune {

namespace {
constexpr double kClipEps = 1e-6;  // CLIP_EPS of ops/global_norm.py
constexpr Index kGrain = 1 << 12;
}  // namespace

void add_loss(Pool&, const float* nll, const float* coefficients, float* totals, Index count) {
    double loss = 0, tokens = 0;
    for (Index r = 0; r < count; ++r) {
        loss += static_cast<double>(coefficients[r]) * static_cast<double>(nll[r]);
        tokens += static_cast<double>(coefficients[r]);
    }
    totals[0] += static_cast<float>(loss);
    totals[1] += static_cast<float>(tokens);
}

void global_norm(Pool& pool, const float* grads, float* totals, const float* settings, float* state, double* parts, Index count) {
    const RowKernels& kernels = row_kernels(pool.isa());
    pool.parallel(kNormParts, [&](Index begin, Index end) {
        for (Index part = begin; part < end; ++part) {
            const Index from = count * part / kNormParts, to = count * (part + 1) / kNormParts;
            parts[part] = kernels.sum_squares(grads + from, to - from);
        }
    });
    double sum = 0;
    for (Index part = 0; part < kNormParts; ++part) sum += parts[part];
    const double beta1 = settings[1], beta2 = settings[2], clip = settings[5], tokens = totals[1];
    const double norm = std::sqrt(sum) / std::max(tokens, 1.0);
    const bool finite = std::isfinite(norm) && std::isfinite(totals[0]) && tokens > 0;
    state[0] = static_cast<float>(norm);
    state[2] = finite ? 1.0f : 0.0f;
    if (finite) {
        const double factor = clip > 0 ? std::min(1.0, clip / (norm + kClipEps)) : 1.0;
        state[1] = static_cast<float>(factor / tokens);
        state[3] = static_cast<float>(beta1 * static_cast<double>(state[3]) + static_cast<double>(settings[6]));
        state[4] = static_cast<float>(beta2 * static_cast<double>(state[4]) + static_cast<double>(settings[7]));
        state[6] = 0;
        state[7] += 1;
        totals[2] += totals[0];
        totals[3] += totals[1];
    } else {
        state[1] = 0;
        state[5] += 1;
        state[6] += 1;
    }
    totals[0] = totals[1] = 0;
}

void adamw(Pool& pool, float* parameters, float* grads, float* m, float* v, const float* settings, const float* state,
           Index count) {
    const RowKernels& kernels = row_kernels(pool.isa());
    const float lr = settings[0];
    const float factors[] = {state[1], settings[1], settings[2], settings[6], settings[7],
                             state[3], state[4],    lr,          settings[3], 1.0f - lr * settings[4]};
    const bool apply = state[2] != 0.0f;
    pool.parallel(
        count,
        [&](Index begin, Index end) {
            // In pieces that stay in the cache, so that the gradient is read once and cleared there.
            for (Index from = begin; from < end; from += kGrain) {
                const Index n = std::min(kGrain, end - from);
                if (apply) kernels.adamw(parameters + from, grads + from, m + from, v + from, factors, n);
                std::memset(grads + from, 0, static_cast<std::size_t>(n) * sizeof(float));
            }
        },
        kGrain);
}

}  // namespace tritune
