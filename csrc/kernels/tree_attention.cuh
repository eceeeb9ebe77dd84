#pragma once

#include "kernels/attention_store.cuh"
#include "kernels/attention_tiles.cuh"
#include "tile/softmax.h"

namespace regrow {

// kGeneral: window, softcap, and scales that are not positive in fp32.
template <class T_, int kHeadDim_, int kRows_, bool kGeneral_>
struct TreeAttentionConfig {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_, kRows = kRows_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr ForwardConfiguration kTable = kForwardConfigurations[find_configuration(kHeadDim, kRows)];
  static constexpr int kThreads = kAttentionThreads;
  static constexpr int kBlocks = kTable.blocks;
  static constexpr int kRowWarps = kTable.row_warps, kKeyWarps = kTable.key_warps();
  static constexpr int kRowBlocks = kRows / kRowWarps / 16;  // blocks of 16 rows, of a warp
  static constexpr int kKeysOfWarp = kKeyTile / kKeyWarps;
  static constexpr int kScoreBlocks = kKeysOfWarp / 8, kOutBlocks = kHeadDim / 8;  // of 8 columns
  static_assert(kRowBlocks * kRowWarps * 16 == kRows && kKeysOfWarp % 16 == 0);

  // Of the calling warp. The compiler does not know that a block has four warps, and is spared the rest where one is.
  DEVICE static int first_row() { return kRowWarps == 1 ? 0 : warp_index() % kRowWarps * (16 * kRowBlocks); }
  DEVICE static int key_warp() { return kKeyWarps == 1 ? 0 : warp_index() / kRowWarps; }
  DEVICE static int first_key() { return key_warp() * kKeysOfWarp; }  // of a tile

  struct Smem {
    SharedTile<T, kRows, kHeadDim> q;  // at the end the rows of out, on their way to 16-byte stores
    union {
      struct {
        SharedTile<T, kKeyTile, kHeadDim> k, v;
      };
      WarpResults<kKeyWarps, kRows, kHeadDim> results;
    };
    QueryPlaces<kRows, kGeneral> queries;
    KeyMask<kGeneral> mask;
  };
  static_assert(sizeof(Smem) <= kTable.shared_bytes());
};

// scores = q k^T, of this warp's rows and keys.
template <class Config>
DEVICE void multiply_keys(FragmentC (&scores)[Config::kRowBlocks][Config::kScoreBlocks],
                          const typename Config::Smem& smem) {
  UNROLL
  for (int column = 0; column < Config::kHeadDim; column += 16) {
    FragmentA<typename Config::T> q[Config::kRowBlocks];
    UNROLL
    for (int b = 0; b < Config::kRowBlocks; ++b) q[b] = load_a(smem.q, Config::first_row() + 16 * b, column);
    UNROLL
    for (int n = 0; n < Config::kScoreBlocks; n += 2) {
      const auto k = load_b_of_rows(smem.k, Config::first_key() + 8 * n, column);
      UNROLL
      for (int b = 0; b < Config::kRowBlocks; ++b) {
        mma(scores[b][n], q[b], k.first);
        mma(scores[b][n + 1], q[b], k.second);
      }
    }
  }
}

// Scores to units of log2.
template <int kRowBlocks, int kBlocks>
DEVICE void scale_scores(FragmentC (&scores)[kRowBlocks][kBlocks], const ScoreScale& scale) {
  UNROLL
  for (int b = 0; b < kRowBlocks; ++b) {
    UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      UNROLL
      for (float& x : scores[b][n].values) x *= scale.over_cap != 0 ? scale.over_cap : scale.log2;
    }
  }
  if (scale.over_cap == 0) return;
  UNROLL
  for (int b = 0; b < kRowBlocks; ++b) {
    UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      UNROLL
      for (float& x : scores[b][n].values)
        // tanh(y) = 1 - 2 / (e^2y + 1), exact at both ends.
        x = scale.cap_log2 - 2 * scale.cap_log2 * reciprocal_approximate(exp2_approximate(x) + 1);
    }
  }
}

// out += weights v.
template <class Config>
DEVICE void multiply_values(
    FragmentC (&out)[Config::kRowBlocks][Config::kOutBlocks],
    const FragmentA<typename Config::T> (&weights)[Config::kRowBlocks][Config::kScoreBlocks / 2],
    const typename Config::Smem& smem) {
  UNROLL
  for (int n = 0; n < Config::kScoreBlocks / 2; ++n) {
    UNROLL
    for (int column = 0; column < Config::kOutBlocks; column += 2) {
      const auto v = load_b(smem.v, Config::first_key() + 16 * n, 8 * column);
      UNROLL
      for (int b = 0; b < Config::kRowBlocks; ++b) {
        mma(out[b][column], weights[b][n], v.first);
        mma(out[b][column + 1], weights[b][n], v.second);
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
  const DevicePlan plan(tiling.plan);
  require(plan.fits(p.rectangle, tiling.tokens, kKeyTile, tiling.cut_items),
          "the plan does not fit this call: make one with regrow.plan(tree, ...)");
  const int item = int(unsigned(block_index()) / unsigned(tiling.units)),
            unit = int(block_index()) - item * tiling.units;
  if (item >= plan.field(&PlanHeader::num_forward_items)) return;
  // Through a shuffle, or the compiler would divide anew for each tile.
  const int kv_head = shuffle(unit * tiling.heads / (p.query_heads / p.kv_heads), 0);
  KeyTileWalk walk(plan, plan.forward_item(item), p.rectangle);

  const auto rows_of = [&](const Rows& rows) {
    return static_cast<const T*>(rows.data) + kv_head * rows.head_stride + walk.first_key() * rows.row_stride;
  };
  const auto copy_keys = [&] {
    copy_key_rows<Config::kThreads>(smem.k, 0, rows_of(p.k), p.k.row_stride, walk.real_keys(), p.head_dim);
    if (walk.partial()) smem.mask.copy(p.rectangle, walk.first_key());
  };
  const auto copy_values = [&] {
    copy_key_rows<Config::kThreads>(smem.v, 0, rows_of(p.v), p.v.row_stride, walk.real_keys(), p.value_dim);
  };

  FragmentC out[Config::kRowBlocks][Config::kOutBlocks];
  OnlineSoftmax<Config::kRowBlocks> softmax;
  if (!walk.done()) {
    const QueryTile queries(p, tiling, plan.forward_item(item).query_tile, unit);
    smem.queries.fill(p.rectangle, queries);
    copy_query_rows<Config::kThreads>(smem.q, p.q, queries, p.head_dim);
    copy_keys();
    commit_copies();
  }
  while (!walk.done()) {
    wait_copies<0>();
    sync_block();  // these keys have landed, and nobody reads the values of the tile before
    copy_values();
    commit_copies();
    FragmentC scores[Config::kRowBlocks][Config::kScoreBlocks];
    multiply_keys<Config>(scores, smem);
    if constexpr (Config::kGeneral) scale_scores(scores, tiling.scale);
    if (walk.partial())
      hide_unseen(scores, p.rectangle, smem.queries, smem.mask, walk.first_key(), Config::first_row(),
                  Config::first_key());
    softmax.update(scores, out, Config::kGeneral ? 1 : tiling.scale.log2);
    FragmentA<T> weights[Config::kRowBlocks][Config::kScoreBlocks / 2];
    UNROLL
    for (int b = 0; b < Config::kRowBlocks; ++b) as_operands(weights[b], scores[b]);

    wait_copies<0>();
    sync_block();  // these values have landed, and nobody reads the keys
    walk.advance();
    if (!walk.done()) {
      copy_keys();
      commit_copies();
    }
    multiply_values<Config>(out, weights, smem);
  }
  store_result<Config>(p, tiling, plan.forward_item(item), unit, softmax, out, smem);
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
    if (p.softcap != 0 || p.rectangle.window != 0 || !(tiling.scale.log2 > 0))
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
