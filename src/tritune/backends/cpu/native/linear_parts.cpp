#include "linear_parts.h"

namespace tritune {

TRITUNE_KERNEL_TABLES(TernaryKernels, ternary_kernels)
TRITUNE_KERNEL_TABLES(LoraKernels, lora_kernels)

namespace {

// Sizes that the caches of a core hold, of which L1 is 32 KiB or more and L2 512 KiB or more: a panel's block in half of
// L1, the tiles of a group and their sums in L2.
constexpr Index kBlockSteps = 640;
constexpr Index kTilesBytes = 320 << 10;
constexpr Index kPanelsAtOnce = 32;

}  // namespace

Panels::Panels(const TernaryKernels& kernels, Index tokens_, Index limbs_, Index reduced)
    : tokens(tokens_),
      limbs(limbs_),
      count(ceil_div(tokens_, kernels.panel_rows / limbs_)),
      bytes_a_token(limbs_ * round_up(reduced, kLineColumns)) {}

void PanelMemory::take(Arena& arena, const Panels& shape) {
    panels = arena.take<std::int8_t>(shape.tokens * shape.bytes_a_token);
    row_sums = arena.take<std::int32_t>(shape.tokens * shape.limbs);
    units = arena.take<float>(shape.tokens);
}

Blocking::Blocking(const TernaryKernels& kernels, const Panels& panels, Index outputs_, Index reduced_, int threads)
    : outputs(outputs_),
      reduced(reduced_),
      tile_width(kernels.tile_width),
      tiles(ceil_div(outputs_, kernels.tile_width)),
      group(1),
      steps(round_up(reduced_, kLineColumns) / 4),
      step_blocks(ceil_div(steps, kBlockSteps)),
      panels_at_once(panels.count < kPanelsAtOnce ? panels.count : kPanelsAtOnce) {
    const Index fit = kTilesBytes / tile_bytes(), shared = ceil_div(tiles, Index{4} * threads);
    group = fit < shared ? fit : shared;
    if (group > kMostTiles) group = kMostTiles;
    if (group < 1) group = 1;
}

void scale_down(const LoraCall& lora, const float* down, Index begin, Index end, float* u) {
    const Index width = lora.width();
    for (Index t = begin; t < end; ++t) {
        for (Index part = 0; part < lora.parts; ++part) {
            const float factor = lora.slot[t] > 0 ? lora.factor(t, part) : 0.0f;
            const float* from = down + t * width + part * lora.rank;
            float* to = u + t * width + part * lora.rank;
            for (Index j = 0; j < lora.rank; ++j) to[j] = factor == 0.0f ? 0.0f : from[j] * factor;
        }
    }
}

}  // namespace tritune
