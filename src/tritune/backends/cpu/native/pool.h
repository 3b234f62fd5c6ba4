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

// `parallel` splits work over the threads, the calling one among them. Workers wait for the next piece of work in a
// short spin, then asleep: an idle pool costs nothing. One caller at a time: whoever runs a tape holds `busy`.
class Pool {
public:
    Pool(int threads, Isa isa);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    Isa isa() const { return isa_; }

    // Static: fn(begin, end) or fn(begin, end, thread), once for each thread whose share of [0, count) is not empty.
    // Shares are contiguous and multiples of `grain` (but for the last), so neighbours can keep to their own lines.
    template <class F>
    void parallel(Index count, F&& fn, Index grain = 1) {
        if (count <= 0) return;
        const Index pieces = ceil_div(count, grain);
        if (threads_ == 1 || pieces == 1) return call(fn, Index{0}, count, 0);
        auto body = [&](int thread) {
            const Index begin = pieces * thread / threads_ * grain;
            const Index last = pieces * (thread + 1) / threads_ * grain;
            const Index end = last < count ? last : count;
            if (begin < end) call(fn, begin, end, thread);
        };
        run(&invoke<decltype(body)>, &body);
    }

    // Dynamic: the same calls, but [0, count) is handed out in pieces of `chunk` to whoever is free. For work whose
    // pieces differ (attention) or that is long enough to suffer from other load on the machine. The result must not
    // depend on which thread took which piece.
    template <class F>
    void parallel_chunks(Index count, Index chunk, F&& fn) {
        if (count <= 0) return;
        if (threads_ == 1 || count <= chunk) return call(fn, Index{0}, count, 0);
        std::atomic<Index> next{0};
        auto body = [&](int thread) {
            for (;;) {
                const Index begin = next.fetch_add(chunk, std::memory_order_relaxed);
                if (begin >= count) return;
                call(fn, begin, begin + chunk < count ? begin + chunk : count, thread);
            }
        };
        run(&invoke<decltype(body)>, &body);
    }

    std::mutex busy;

private:
    using Job = void (*)(void* context, int thread);

    template <class Body>
    static void invoke(void* context, int thread) {
        (*static_cast<Body*>(context))(thread);
    }

    template <class F>
    static void call(F& fn, Index begin, Index end, int thread) {
        if constexpr (std::is_invocable_v<F&, Index, Index, int>) {
            fn(begin, end, thread);
        } else {
            (void)thread;
            fn(begin, end);
        }
    }

    void run(Job job, void* context);  // on all threads, and wait for them
    void work(int thread);

    const int threads_;
    const Isa isa_;
    Job job_ = nullptr;
    void* context_ = nullptr;
    bool stop_ = false;
    alignas(kCacheLine) std::atomic<std::uint32_t> round_{0};    // a new number is a new job
    alignas(kCacheLine) std::atomic<std::uint32_t> working_{0};  // workers that have not finished this round
    std::vector<std::thread> workers_;
};

}  // namespace tritune
