#include "tape.h"

#include <algorithm>
#include <chrono>

namespace tritune {

void Tape::run(Pool& pool) const {
    for (const Entry& entry : ops_) entry.op(pool);
}

void Tape::profile(Pool& pool, std::vector<std::pair<std::string, double>>& seconds) const {
    using Clock = std::chrono::steady_clock;
    for (const Entry& entry : ops_) {
        const auto start = Clock::now();
        entry.op(pool);
        const double took = std::chrono::duration<double>(Clock::now() - start).count();
        const auto same = [&](const auto& item) { return item.first == entry.name; };
        const auto found = std::find_if(seconds.begin(), seconds.end(), same);
        if (found == seconds.end()) {
            seconds.emplace_back(entry.name, took);
        } else {
            found->second += took;
        }
    }
}

}  // namespace tritune
