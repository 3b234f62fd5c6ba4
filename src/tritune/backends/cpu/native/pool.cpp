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
    for (int thread = 1; thread < threads_; ++thread) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() {
    stop_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int shares, Job job, void* context) {
    job_ = job;
    context_ = context;
    left_.store(static_cast<std::uint32_t>(shares), std::memory_order_relaxed);
    const std::uint32_t round = round_.load(std::memory_order_relaxed) + 1;
    tickets_.store(static_cast<std::uint64_t>(round) << 32 | static_cast<std::uint32_t>(shares - 1), std::memory_order_release);
    round_.store(round, std::memory_order_release);
    round_.notify_all();
    job(context, 0);
    std::uint32_t left = left_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    for (int share = 0; left != 0 && take(round, share);) {
        job(context, share);
        left = left_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    }
    while (left != 0) left = wait_for_change(left_, left);
}

// Takes a share of `round`, if there is one. A worker that wakes late finds another round's tickets and takes none; one
// that has taken a share keeps its round from ending, so job_ and context_ are that round's.
bool Pool::take(std::uint32_t round, int& share) {
    std::uint64_t tickets = tickets_.load(std::memory_order_acquire);
    while (tickets >> 32 == round && static_cast<std::uint32_t>(tickets) != 0) {
        if (tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            share = static_cast<int>(static_cast<std::uint32_t>(tickets));
            return true;
        }
    }
    return false;
}

void Pool::work() {
    std::uint32_t round = 0;
    for (;;) {
        round = wait_for_change(round_, round);
        if (stop_.load(std::memory_order_relaxed)) return;
        for (int share = 0; take(round, share);) {
            job_(context_, share);
            if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
        }
    }
}

}  // namespace tritune
