#include "gather_rows.h"

#include <cstring>

namespace tritune {

void gather_rows(Pool& pool, const float* x, const std::int32_t* index, float* out, Index count, Index rows, Index columns) {
    const std::size_t bytes = static_cast<std::size_t>(columns) * sizeof(float);
    pool.parallel(count, [&](Index begin, Index end) {
        for (Index r = begin; r < end; ++r) {
            const Index from = index[r];
            if (from >= 0 && from < rows) {
                std::memcpy(out + r * columns, x + from * columns, bytes);
            } else {
                std::memset(out + r * columns, 0, bytes);
            }
        }
    });
}

void scatter_rows(Pool& pool, const float* x, const std::int32_t* index, float* out, Index count, Index rows, Index columns) {
    const std::size_t bytes = static_cast<std::size_t>(columns) * sizeof(float);
    pool.parallel(rows, [&](Index begin, Index end) {
        std::memset(out + begin * columns, 0, static_cast<std::size_t>(end - begin) * bytes);
    });
    pool.parallel(count, [&](Index begin, Index end) {
        for (Index r = begin; r < end; ++r) {
            const Index to = index[r];
            if (to >= 0 && to < rows) std::memcpy(out + to * columns, x + r * columns, bytes);
        }
    });
}

void next_rows(Pool&, const std::int32_t* drawn, std::int32_t* tokens, std::int32_t* positions, Index count) {
    for (Index s = 0; s < count; ++s) {
        if (positions[s] < 0) continue;
        tokens[s] = drawn[s];
        ++positions[s];
    }
}

}  // namespace tritune
