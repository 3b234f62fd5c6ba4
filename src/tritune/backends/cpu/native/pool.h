// The threads of a backend, and the instruction set that its kernels use.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "common.h"

namespace tritune {

// `parallel` splits work into one share a thread. The calling thread takes the first share, and then every share that
// no worker has begun: a worker that sleeps, or that the operating system does not let run, holds nobody up. Workers wait
// for the next work in a short spin, then asleep: an idle pool costs nothing. One caller at a time: whoever runs a tape
// holds `busy`.
class Pool {
public:
    Pool(int threads, Isa isa);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    Isa isa() const { return isa_; }

    // Static: fn(begin, end) or fn(begin, end, share), once for each share of [0, count) that is not empty; share is a
    // number below threads(). Shares are contiguous and multiples of `grain` (but for the last), so that neighbours
    // keep to their own cache lines.
    template <class F>
    void parallel(Index count, F&& fn, Index grain = 1) {
        if (count <= 0) return;
        const Index pieces = ceil_div(count, grain);
        if (threads_ == 1 || pieces == 1) return call(fn, Index{0}, count, 0);
        const int shares = pieces < threads_ ? static_cast<int>(pieces) : threads_;
        auto body = [&](int share) {
            const Index begin = pieces * share / shares * grain;
            const Index last = pieces * (share + 1) / shares * grain;
            call(fn, begin, last < count ? last : count, share);
        };
        run(shares, &invoke<decltype(body)>, &body);
    }

    // Dynamic: the same calls, but [0, count) is handed out in pieces of `chunk` to whoever is free. For work whose
    // pieces differ (attention) or that is long enough to suffer from other load on the machine. The result must not
    // depend on which thread took which piece.
    template <class F>
    void parallel_chunks(Index count, Index chunk, F&& fn) {
        if (count <= 0) return;
        if (threads_ == 1 || count <= chunk) return call(fn, Index{0}, count, 0);
        std::atomic<Index> next{0};
        const Index pieces = ceil_div(count, chunk);
        const int shares = pieces < threads_ ? static_cast<int>(pieces) : threads_;
        auto body = [&](int share) {
            for (;;) {
                const Index begin = next.fetch_add(chunk, std::memory_order_relaxed);
                if (begin >= count) return;
                call(fn, begin, begin + chunk < count ? begin + chunk : count, share);
            }
        };
        run(shares, &invoke<decltype(body)>, &body);
    }

    std::mutex busy;

private:
    using Job = void (*)(void* context, int share);

    template <class Body>
    static void invoke(void* context, int share) {
        (*static_cast<Body*>(context))(share);
    }

    template <class F>
    static void call(F& fn, Index begin, Index end, int share) {
        if constexpr (std::is_invocable_v<F&, Index, Index, int>) {
            fn(begin, end, share);
        } else {
            (void)share;
            fn(begin, end);
        }
    }

    void run(int shares, Job job, void* context);  // every share once, and wait for all of them
    bool take(std::uint32_t round, int& share);
    void work();

    const int threads_;
    const Isa isa_;
    // Written by the caller between two rounds, read by whoever has taken a share of the round.
    Job job_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> stop_{false};
    alignas(kCacheLine) std::atomic<std::uint32_t> round_{0};    // a new number is a new job; workers sleep on it
    alignas(kCacheLine) std::atomic<std::uint64_t> tickets_{0};  // round << 32 | shares that nobody has taken
    alignas(kCacheLine) std::atomic<std::uint32_t> left_{0};     // shares that are not finished
    std::vector<std::thread> workers_;
};

}  // namespace tritune
