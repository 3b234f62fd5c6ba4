// What linear and linear_backward are made of: scratch, panels, the blocked integer product, LoRA on a block.
#pragma once

#include <cstring>

#include "lora_kernels.h"
#include "pool.h"
#include "ternary.h"
#include "ternary_kernels.h"

namespace tritune {

// Hands out pieces of the scratch, or, on nullptr, only counts its bytes.
class Arena {
public:
    explicit Arena(std::uint8_t* base) : base_(base) {}

    template <class T>
    T* take(Index count) {
        const Index start = used_;
        used_ += round_up(count * static_cast<Index>(sizeof(T)), static_cast<Index>(kCacheLine));
        return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + start);
    }
    Index used() const { return used_; }

private:
    std::uint8_t* base_;
    Index used_ = 0;
};

// LoRA's side of a call: pools and rows as in base.py.
struct LoraCall {
    Index rank = 0, parts = 0, rows = 0, columns = 0;  // rank 0: none
    bool half = false;
    const void* a = nullptr;   // [pool, parts * rank, columns]
    const void* b = nullptr;   // [pool, rows, rank]
    const float* scale = nullptr;  // [pool, parts]
    const std::int32_t* part_starts = nullptr;
    const std::int32_t* slot = nullptr;
    const float* multiplier = nullptr;

    Index width() const { return parts * rank; }
    const void* a_of(std::int32_t slot_number, Index first_row) const {
        const Index element = ((slot_number - 1) * width() + first_row) * columns;
        return static_cast<const std::uint8_t*>(a) + element * (half ? 2 : 4);
    }
    const void* b_of(std::int32_t slot_number, Index first_row) const {
        const Index element = ((slot_number - 1) * rows + first_row) * rank;
        return static_cast<const std::uint8_t*>(b) + element * (half ? 2 : 4);
    }
    float factor(Index token, Index part) const {
        return multiplier[token] * scale[(slot[token] - 1) * parts + part];
    }
};

struct DropoutCall {
    const std::uint32_t* state = nullptr;  // seed, step; null: none
    std::uint32_t module = 0, threshold = 0;
    float keep = 1;

    std::uint32_t hash() const { return hash_word(hash_word(hash_word(0, state[0]), state[1]), module); }
};

// fn(first, last, slot) for each run of tokens of [begin, end) that have the same adapter; slot 0: none.
template <class F>
void each_run(const std::int32_t* slot, Index begin, Index end, F&& fn) {
    for (Index first = begin; first < end;) {
        Index last = first + 1;
        while (last < end && slot[last] == slot[first]) ++last;
        fn(first, last, slot[first]);
        first = last;
    }
}

// fn(part, first, last) for each part's piece of matrix rows [begin, end).
template <class F>
void each_part(const LoraCall& lora, Index begin, Index end, F&& fn) {
    for (Index part = 0; part < lora.parts; ++part) {
        const Index start = lora.part_starts[part], stop = lora.part_starts[part + 1];
        const Index first = begin > start ? begin : start, last = end < stop ? end : stop;
        if (first < last) fn(part, first, last);
    }
}

// How tokens are shared out to panels: as evenly as possible, none with more rows than a kernel takes.
struct Panels {
    Index tokens = 0, limbs = 1, count = 0, bytes_a_token = 0;

    Panels(const TernaryKernels& kernels, Index tokens_, Index limbs_, Index reduced);
    Index first(Index panel) const { return tokens * panel / count; }  // token
    Index rows(Index panel) const { return (first(panel + 1) - first(panel)) * limbs; }
};

struct PanelMemory {
    std::int8_t* panels;     // [tokens * limbs * reduced rounded up to 16]
    std::int32_t* row_sums;  // [tokens * limbs]
    float* units;            // [tokens]

    void take(Arena& arena, const Panels& shape);
};

// What each thread has for itself.
struct ThreadMemory {
    std::uint8_t* tiles = nullptr;
    std::int32_t* sums = nullptr;
    float* factors = nullptr;  // a block of A or of Bᵀ for each tile of a group
    float* block = nullptr;    // tokens x a few columns
};

// The product of one matrix side with all panels, a few tiles at a time. `outputs` of the matrix's rows or columns,
// `reduced` the other.
struct Blocking {
    Index outputs, reduced;
    Index tile_width, tiles, group;  // tiles in all, and taken together
    Index steps, step_blocks;        // fours of the reduced side, and into how many blocks they are cut
    Index panels_at_once;

    Blocking(const TernaryKernels& kernels, const Panels& panels, Index outputs_, Index reduced_, int threads);
    Index groups() const { return ceil_div(tiles, group); }
    // The first line (16 reduced numbers) of a block.
    Index first_line(Index block) const { return steps / 4 * block / step_blocks; }
    Index tile_bytes() const { return (ceil_div(steps / 4, step_blocks)) * 4 * tile_width * 4; }
    Index sums() const { return panels_at_once * kMostPanelRows * tile_width * group; }

    static constexpr Index kMostPanelRows = 12;
    static constexpr Index kMostTiles = 16;  // of a group
};

// Multiplies the tiles of one group with all panels, and calls done(tile, first output, outputs, first token, tokens,
// sums) for each finished piece. columns: outputs are matrix columns. lines: of the whole matrix, row_lines a row.
template <class Done>
void multiply_group(const TernaryKernels& kernels, const Blocking& shape, const Panels& panels,
                    const PanelMemory& memory, const std::uint8_t* lines, Index row_lines, bool columns, Index group,
                    const ThreadMemory& own, Done&& done) {
    const Index first_tile = group * shape.group;
    const Index last_tile = first_tile + shape.group < shape.tiles ? first_tile + shape.group : shape.tiles;
    const Index sums_tile = kernels.tile_width * Blocking::kMostPanelRows;  // of one panel and one tile
    const Index output_lines = ceil_div(shape.outputs, kLineRows);
    for (Index start = 0; start < panels.count; start += shape.panels_at_once) {
        const Index stop = start + shape.panels_at_once < panels.count ? start + shape.panels_at_once : panels.count;
        for (Index block = 0; block < shape.step_blocks; ++block) {
            const Index line = shape.first_line(block), line_count = shape.first_line(block + 1) - line;
            if (start == 0 || shape.step_blocks > 1) {
                for (Index tile = first_tile; tile < last_tile; ++tile) {
                    const Index output_line = tile * shape.tile_width / kLineRows;
                    const Index left = output_lines - output_line, most = shape.tile_width / kLineRows;
                    std::uint8_t* to = own.tiles + (tile - first_tile) * shape.tile_bytes();
                    if (columns) {
                        kernels.unpack_columns(lines + (line * row_lines + output_line) * kLineBytes, row_lines,
                                               line_count, left < most ? left : most, to);
                    } else {
                        kernels.unpack_rows(lines + (output_line * row_lines + line) * kLineBytes, row_lines,
                                            line_count, left < most ? left : most, to);
                    }
                }
            }
            for (Index panel = start; panel < stop; ++panel) {
                const Index token = panels.first(panel), rows = panels.rows(panel);
                const std::int8_t* from = memory.panels + token * panels.bytes_a_token + line * 16 * rows;
                const Index after = panel + 1 < stop ? panel + 1 : start;  // then with the next block or group
                const std::int8_t* next = memory.panels + panels.first(after) * panels.bytes_a_token +
                                          (panel + 1 < stop ? line : line + line_count) * 16 * panels.rows(after);
                for (Index tile = first_tile; tile < last_tile; ++tile) {
                    const Index kept = shape.step_blocks > 1 ? panel - start : 0;
                    std::int32_t* sums = own.sums + (kept * shape.group + tile - first_tile) * sums_tile;
                    kernels.multiply_tile(own.tiles + (tile - first_tile) * shape.tile_bytes(), line_count * 4, from,
                                          rows, sums, block == 0, tile + 1 == last_tile ? next : from);
                    if (block + 1 == shape.step_blocks) {
                        const Index output = tile * shape.tile_width, left = shape.outputs - output;
                        done(tile - first_tile, output, left < shape.tile_width ? left : shape.tile_width, token,
                             rows / panels.limbs, sums);
                    }
                }
            }
        }
    }
}

// u = down times the factor of token and part, 0 in tokens without an adapter: [begin, end) of f32 [T, width].
void scale_down(const LoraCall& lora, const float* down, Index begin, Index end, float* u);

}  // namespace tritune
