#include "measure.h"

#include <atomic>
#include <chrono>

#include "isa.h"
#include "measure_kernels.h"

namespace tritune {

TRITUNE_KERNEL_TABLES(MeasureKernels, measure_kernels)

namespace {

std::atomic<std::int32_t> sink;  // so that no loop can be left out

// The best rate of rounds of at least a few milliseconds; run(thread) is one round and counts `amount`.
template <class Run>
double best_rate(Pool& pool, double seconds, double amount, Run run) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    double best = 0;
    while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
        const auto start = Clock::now();
        pool.parallel(pool.threads(), [&](Index first, Index last) {
            for (Index thread = first; thread < last; ++thread) run(thread);
        });
        const double rate = amount / std::chrono::duration<double>(Clock::now() - start).count();
        best = rate > best ? rate : best;
    }
    return best;
}

}  // namespace

double measure_fma(Pool& pool, double seconds) {
    constexpr Index kRounds = 400'000;
    const MeasureKernels& kernels = measure_kernels(pool.isa());
    const double amount = static_cast<double>(kRounds * kernels.fma_per_round * pool.threads());
    return best_rate(pool, seconds, amount, [&](Index) { sink += static_cast<std::int32_t>(kernels.fma(kRounds)); });
}

double measure_dot(Pool& pool, double seconds) {
    constexpr Index kRounds = 400'000;
    const MeasureKernels& kernels = measure_kernels(pool.isa());
    const double amount = static_cast<double>(kRounds * kernels.dot_per_round * pool.threads());
    return best_rate(pool, seconds, amount, [&](Index) { sink ^= kernels.dot(kRounds); });
}

double measure_read(Pool& pool, const std::uint8_t* bytes, Index count, double seconds) {
    const MeasureKernels& kernels = measure_kernels(pool.isa());
    const Index share = count / pool.threads() / 4096 * 4096;
    const double amount = static_cast<double>(share * pool.threads());
    return best_rate(pool, seconds, amount, [&](Index thread) { sink ^= kernels.read(bytes + thread * share, share); });
}

}  // namespace tritune
