#include "pool.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace tritune {

namespace {

// About 50 µs: longer than the gap between two ops of a tape, much shorter than a person's pause.
constexpr int kSpins = 1000;

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// The next value of `word` that is not `old`: a short spin, then asleep.
std::uint32_t wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
    for (int spin = 0; spin < kSpins; ++spin) {
        const std::uint32_t now = word.load(std::memory_order_acquire);
        if (now != old) return now;
        relax();
    }
    word.wait(old, std::memory_order_acquire);
    return word.load(std::memory_order_acquire);
}

}  // namespace

Pool::Pool(int threads, Isa isa) : threads_(threads < 1 ? 1 : threads), isa_(isa) {
    workers_.reserve(static_cast<std::size_t>(threads_ - 1));
    for (int thread = 1; thread < threads_; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Pool::~Pool() {
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::run(Job job, void* context) {
    job_ = job;
    context_ = context;
    working_.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    job(context, 0);
    for (std::uint32_t left = working_.load(std::memory_order_acquire); left != 0;) {
        left = wait_for_change(working_, left);
    }
}

void Pool::work(int thread) {
    std::uint32_t seen = 0;
    for (;;) {
        seen = wait_for_change(round_, seen);
        if (stop_) return;
        job_(context_, thread);
        if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
    }
}

}  // namespace tritune
