#include "copy.h"

#include <cstring>

namespace tritune {

namespace {
constexpr Index kGrain = 1 << 14;  // bytes; a thread is worth waking for a few times this
}

void copy(Pool& pool, const std::uint8_t* source, std::uint8_t* target, Index bytes) {
    pool.parallel(
        bytes, [&](Index begin, Index end) { std::memcpy(target + begin, source + begin, static_cast<std::size_t>(end - begin)); },
        kGrain);
}

void zero(Pool& pool, std::uint8_t* target, Index bytes) {
    pool.parallel(bytes, [&](Index begin, Index end) { std::memset(target + begin, 0, static_cast<std::size_t>(end - begin)); }, kGrain);
}

}  // namespace tritune
