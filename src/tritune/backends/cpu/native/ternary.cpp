#include "ternary.h"

#include <cstring>

namespace tritune {

namespace {

std::uint32_t load(const std::int8_t* p) {
    std::uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return word;
}

// Four int8 in {-1, 0, 1}, plus 1 each, without a carry from byte to byte.
std::uint32_t plus_one(std::uint32_t w) { return ((w & 0x7f7f7f7fu) + 0x01010101u) ^ (w & 0x80808080u); }

void pack_row(const std::int8_t* codes, Index columns, std::uint8_t* bytes) {
    for (Index k = 0; k < columns; k += kLineColumns, bytes += kLineBytes) {
        const Index words = (columns - k < kLineColumns ? columns - k : kLineColumns) / 4;
        std::uint32_t word = 0;
        for (Index j = 0; j < words; ++j) word |= plus_one(load(codes + k + 4 * j)) << (2 * j);
        for (int b = 0; b < 4; ++b) bytes[b] = static_cast<std::uint8_t>(word >> (8 * b));
    }
}

}  // namespace

void pack_ternary(Pool& pool, const std::int8_t* codes, Index rows, Index columns, Index first_row, std::uint8_t* lines) {
    const Index row_lines = ceil_div(columns, kLineColumns);
    pool.parallel(
        rows,
        [&](Index begin, Index end) {
            for (Index i = begin; i < end; ++i) {
                const Index row = first_row + i;
                std::uint8_t* bytes = lines + row / kLineRows * row_lines * kLineBytes + row % kLineRows * 4;
                pack_row(codes + i * columns, columns, bytes);
            }
        },
        kLineRows);
}

void unpack_ternary(Pool& pool, const std::uint8_t* lines, Index rows, Index columns, Index first_row,
                    std::int8_t* codes) {
    const Index row_lines = ceil_div(columns, kLineColumns);
    pool.parallel(rows, [&](Index begin, Index end) {
        for (Index i = begin; i < end; ++i) {
            const Index row = first_row + i;
            const std::uint8_t* bytes = lines + row / kLineRows * row_lines * kLineBytes + row % kLineRows * 4;
            for (Index k = 0; k < columns; ++k) {
                const std::uint8_t byte = bytes[k / kLineColumns * kLineBytes + k % 4];
                codes[i * columns + k] = static_cast<std::int8_t>((byte >> (k % kLineColumns / 4 * 2) & 3) - 1);
            }
        }
    });
}

}  // namespace tritune
