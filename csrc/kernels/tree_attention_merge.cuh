#pragma once

#include "kernels/attention_store.cuh"

namespace regrow {

struct TreeAttentionMergeConfig {
  static constexpr int kThreads = 128;
  static constexpr int kMaxRegisters = 64;  // 8 blocks per SM: the kernel waits for memory
  static constexpr int kRowsOfBlock = 16;   // four a warp, so that few long merges still fill the chip
};

// Joins the pieces of split query tiles, one warp a row, in key order: block (merge, unit), y a part of the rows.
template <class Out>
GLOBAL void LAUNCH_BOUNDS(TreeAttentionMergeConfig::kThreads)
    tree_attention_merge(const AttentionForwardParams p, const ForwardTiling tiling) {
  using Config = TreeAttentionMergeConfig;
  const DevicePlan plan(tiling.plan);
  const int64_t index = block_index() / tiling.units;
  if (index >= plan.field(&PlanHeader::num_merges)) return;
  const ForwardMerge merge = plan.merge(index);
  const int unit = int(block_index() % tiling.units);
  const QueryTile queries(p, tiling, merge.query_tile, unit);
  const Slots slots(p, tiling);

  for (int i = warp_index(); i < Config::kRowsOfBlock; i += Config::kThreads / kWarpLanes) {
    const int row = block_index_y() * Config::kRowsOfBlock + i;
    if (!queries.has(row)) return;
    const auto slot_row = [&](int slot) { return Slots::row(tiling, slot, unit, row); };
    float top = -INFINITY;
    for (int slot = merge.slot_begin; slot < merge.slot_end; ++slot) {
      const float lse = load_global(slots.lse + slot_row(slot));
      if (!(lse <= top) && top == top) top = lse;  // a NaN stays
    }
    float total = top;
    if (!std::isinf(top)) {
      float sum = 0;
      for (int slot = merge.slot_begin; slot < merge.slot_end; ++slot)
        sum += share_of(load_global(slots.lse + slot_row(slot)), top);
      total = top + std::log(sum);
    }
    float lse = total;
    const float factor = admit_sink(p, queries.head(row), lse);
    if (lane_index() == 0) store_global(queries.lse_of(p, row), lse);

    Out* to = queries.out_of<Out>(p, row);
    for (int column = lane_index() * 4; column < p.value_dim; column += kWarpLanes * 4) {
      Values<float, 4> out = {};
      for (int slot = merge.slot_begin; slot < merge.slot_end; ++slot) {
        const float weight = share_of(load_global(slots.lse + slot_row(slot)), total) * factor;
        const auto part = load_values<float, 4>(slots.out + slot_row(slot) * p.value_dim + column);
        UNROLL
        for (int v = 0; v < 4; ++v) out[v] += weight * part[v];
      }
      UNROLL
      for (int v = 0; v < 4; ++v) store_global(to + column + v, from_float<Out>(out[v]));
    }
  }
}

// launch(shape, kernel, p, tiling), after the forward and on its stream.
template <class Launch>
void dispatch_tree_attention_merge(const AttentionForwardParams& p, const ForwardTiling& tiling, const Launch& launch) {
  if (tiling.max_merges == 0) return;
  using Config = TreeAttentionMergeConfig;
  const LaunchShape shape = {.blocks = tiling.max_merges * tiling.units,
                             .blocks_y = (tiling.rows + Config::kRowsOfBlock - 1) / Config::kRowsOfBlock,
                             .threads = Config::kThreads};
  if (p.out_dtype == DType::kFloat32) return launch(shape, &tree_attention_merge<float>, p, tiling);
  if (p.out_dtype == DType::kBFloat16) return launch(shape, &tree_attention_merge<bf16>, p, tiling);
  return launch(shape, &tree_attention_merge<fp16>, p, tiling);
}

}  // namespace regrow
