#pragma once

#include "kernels/attention_store.cuh"
#include "kernels/attention_tiles.cuh"
#include "tile/softmax.h"

namespace regrow {

// kGeneral: window, softcap, and scales that are not positive.
template <class T_, int kHeadDim_, int kRows_, bool kGeneral_>
struct TreeAttentionConfig {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_, kRows = kRows_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr ForwardConfiguration kTable = kForwardConfigurations[find_configuration(kHeadDim, kRows)];
  static constexpr int kThreads = kAttentionThreads;
  static constexpr int kBlocks = kTable.blocks;
  static constexpr int kRowWarps = kTable.row_warps, kKeyWarps = kTable.key_warps();
  static constexpr int kRowBlocks = kRows / kRowWarps / 16;    // blocks of 16 rows, of a warp
  static constexpr int kKeysOfWarp = kKeyTile / kKeyWarps;
  static constexpr int kScoreBlocks = kKeysOfWarp / 8, kOutBlocks = kHeadDim / 8;  // of 8 columns
  static_assert(kRowBlocks * kRowWarps * 16 == kRows && kKeysOfWarp % 16 == 0);

  struct Smem {
    SharedTile<T, kRows, kHeadDim> q;  // at the end the rows of out, on their way to 16-byte stores
    union {
      struct {
        SharedTile<T, kKeyTile, kHeadDim> k, v;
      };
      WarpResults<kKeyWarps, kRows, kHeadDim> results;
    };
    KeyMask<kGeneral> mask;
  };
};

// scores = q k^T, of this warp's rows and keys.
template <class Config>
DEVICE void multiply_keys(FragmentC (&scores)[Config::kRowBlocks][Config::kScoreBlocks],
                          const typename Config::Smem& smem, int first_row, int first_key) {
  UNROLL
  for (int column = 0; column < Config::kHeadDim; column += 16) {
    FragmentA<typename Config::T> q[Config::kRowBlocks];
    UNROLL
    for (int b = 0; b < Config::kRowBlocks; ++b) q[b] = load_a(smem.q, first_row + 16 * b, column);
    UNROLL
    for (int n = 0; n < Config::kScoreBlocks; n += 2) {
      const auto k = load_b_of_rows(smem.k, first_key + 8 * n, column);
      UNROLL
      for (int b = 0; b < Config::kRowBlocks; ++b) {
        mma(scores[b][n], q[b], k.first);
        mma(scores[b][n + 1], q[b], k.second);
      }
    }
  }
}

// out += weights v.
template <class Config>
DEVICE void multiply_values(FragmentC (&out)[Config::kRowBlocks][Config::kOutBlocks],
                            const FragmentC (&weights)[Config::kRowBlocks][Config::kScoreBlocks],
                            const typename Config::Smem& smem, int first_key) {
  UNROLL
  for (int n = 0; n < Config::kScoreBlocks; n += 2) {
    FragmentA<typename Config::T> p[Config::kRowBlocks];
    UNROLL
    for (int b = 0; b < Config::kRowBlocks; ++b)
      p[b] = as_operand<typename Config::T>(weights[b][n], weights[b][n + 1]);
    UNROLL
    for (int column = 0; column < Config::kOutBlocks; column += 2) {
      const auto v = load_b(smem.v, first_key + 8 * n, 8 * column);
      UNROLL
      for (int b = 0; b < Config::kRowBlocks; ++b) {
        mma(out[b][column], p[b], v.first);
        mma(out[b][column + 1], p[b], v.second);
      }
    }
  }
}

// One item of the plan for one unit of heads: a query tile walks its key tiles. Keys are copied while the values before
// them are multiplied, values while the keys are; with several blocks on a multiprocessor the rest overlaps too.
template <class Config>
GLOBAL void LAUNCH_BOUNDS(Config::kThreads, Config::kBlocks)
    tree_attention(const AttentionForwardParams p, const ForwardTiling tiling) {
  using T = typename Config::T;
  SHARED(typename Config::Smem, smem);
  const DevicePlan plan(p.plan);
  require(plan.fits(p.rectangle, tiling.tokens, kKeyTile),
          "the plan does not fit this call: make one with regrow.plan(tree, ...)");
  const int64_t item_index = block_index() / tiling.units;
  if (item_index >= plan.field(&PlanHeader::num_forward_items)) return;
  const ForwardItem item = plan.forward_item(item_index);
  const int unit = int(block_index() % tiling.units);
  const QueryTile queries(p, tiling, item.query_tile, unit);
  const int first_row = warp_index() % Config::kRowWarps * (16 * Config::kRowBlocks);
  const int first_key = warp_index() / Config::kRowWarps * Config::kKeysOfWarp;
  const QueryPlaces<Config::kRowBlocks, Config::kGeneral> places(p.rectangle, queries, first_row);
  const ScoreScale scale(p);

  const auto copy_queries = [&] {
    copy_rows_async<Config::kThreads>(smem.q, p.head_dim, [&](int row) -> RowSource<T> {
      const T* q = static_cast<const T*>(p.q.data);
      if (!queries.has(row)) return {q, false};
      return {q + queries.query(row) * p.q.row_stride + queries.head(row) * p.q.head_stride, true};
    });
  };
  const int kv_head = queries.kv_head(p);
  const auto rows_of = [&](const Rows& rows, const KeyTile& keys) {
    const T* head = static_cast<const T*>(rows.data) + kv_head * rows.head_stride;
    return [=, stride = rows.row_stride](int row) -> RowSource<T> {
      const bool real = keys.real >> row & 1;
      return {head + (real ? (keys.first + row) * stride : 0), real};
    };
  };
  const auto copy_keys = [&](const KeyTile& keys) {
    copy_rows_async<Config::kThreads>(smem.k, p.head_dim, rows_of(p.k, keys));
    if (keys.partial) smem.mask.copy(p.rectangle, keys);
  };

  FragmentC out[Config::kRowBlocks][Config::kOutBlocks];
  OnlineSoftmax<Config::kRowBlocks> softmax;
  KeyTileWalk walk(plan, item, p.rectangle.num_keys);
  KeyTile keys = {};
  if (!walk.done()) {
    keys = walk.current();
    copy_queries();
    copy_keys(keys);
    commit_copies();
  }
  while (!walk.done()) {
    wait_copies<0>();
    sync_block();  // these keys have landed, and nobody reads the values of the tile before
    copy_rows_async<Config::kThreads>(smem.v, p.value_dim, rows_of(p.v, keys));
    commit_copies();
    FragmentC scores[Config::kRowBlocks][Config::kScoreBlocks];
    multiply_keys<Config>(scores, smem, first_row, first_key);
    if constexpr (Config::kGeneral) scale.apply(scores);
    if (keys.partial) hide_unseen(scores, p.rectangle, keys, smem.mask, places, first_key);
    softmax.update(scores, out, Config::kGeneral ? 1 : scale.log2);

    wait_copies<0>();
    sync_block();  // these values have landed, and nobody reads the keys
    walk.advance();
    if (!walk.done()) {
      keys = walk.current();
      copy_keys(keys);
      commit_copies();
    }
    multiply_values<Config>(out, scores, smem, first_key);
  }
  store_result<Config>(p, tiling, queries, item.slot, unit, softmax, out, smem);
}

// launch(shape, kernel, p, tiling) with the instantiation that p asks for, of those with head dim kHeadDim.
template <int kHeadDim, class Launch>
void dispatch_tree_attention(const AttentionForwardParams& p, const ForwardTiling& tiling, const Launch& launch) {
  const auto run = [&]<class Config>() {
    launch({.blocks = tiling.max_items * tiling.units,
            .threads = Config::kThreads,
            .shared_bytes = int(sizeof(typename Config::Smem))},
           &tree_attention<Config>, p, tiling);
  };
  const auto with_type = [&]<class T, int kRows>() {
    if (p.softcap != 0 || p.rectangle.window != 0 || !(p.scale > 0))
      run.template operator()<TreeAttentionConfig<T, kHeadDim, kRows, true>>();
    else
      run.template operator()<TreeAttentionConfig<T, kHeadDim, kRows, false>>();
  };
  const auto with_rows = [&]<int kRows>() {
    if constexpr (find_configuration(kHeadDim, kRows) >= 0) {
      if (p.q.dtype == DType::kBFloat16)
        with_type.template operator()<bf16, kRows>();
      else
        with_type.template operator()<fp16, kRows>();
    }
  };
  if (tiling.rows == 128) with_rows.template operator()<128>();
  if (tiling.rows == 64) with_rows.template operator()<64>();
  if (tiling.rows == 16) with_rows.template operator()<16>();
}

}  // namespace regrow
