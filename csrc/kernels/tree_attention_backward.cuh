#pragma once

#include "kernels/attention_backward_rows.cuh"
#include "kernels/attention_backward_tiles.cuh"
#include "tile/operands.h"

namespace regrow {

template <class T_, int kHeadDim_, bool kGeneral_>
struct TreeAttentionBackwardConfig {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr BackwardConfiguration kTable = kBackwardConfigurations[find_backward_configuration(kHeadDim)];
  static constexpr int kThreads = kBackwardThreads, kBlocks = 1, kMaxRegisters = 255;
  static constexpr int kRows = kBackwardRows, kKeys = kTable.keys, kStages = kTable.stages;
  static constexpr int kColumnWarps = kTable.column_warps;
  // Blocks of 8 columns: of a warp's 16 keys against its rows; of its part of dk and dv; of its part of dq.
  static constexpr int kScoreBlocks = kRows / kColumnWarps / 8, kSumBlocks = kHeadDim / kColumnWarps / 8;
  static constexpr int kQueryParts = kHeadDim > 128 ? 2 : 1;  // in turn, where all at once would not fit the registers
  static constexpr int kQueryBlocks = kHeadDim / 2 / 8 / kQueryParts;
  static_assert(kTable.head_dim == kHeadDim && kKeys / 16 * kColumnWarps == kThreads / kWarpLanes);

  struct Smem {
    SharedTile<T, kKeys, kHeadDim> k, v;
    SharedTile<T, kRows, kHeadDim> q[kStages], dout[kStages];
    SharedTile<T, kKeys, kRows> dscores;                           // [key, row]
    SharedTile<T, (kColumnWarps > 1 ? kKeys : 8), kRows> weights;  // [key, row], where warps exchange them
    BackwardRows<kRows, kGeneral> rows[kStages];
    KeyMask<kGeneral, kKeys> mask;
    BlockItem item;
  };

  // Of the calling warp: its keys, the rows of its scores, and the columns of its sums.
  DEVICE static int first_key() { return warp_index() / kColumnWarps * 16; }
  DEVICE static int first_row() { return kColumnWarps == 1 ? 0 : warp_index() % kColumnWarps * (8 * kScoreBlocks); }
  DEVICE static int first_column() { return kColumnWarps == 1 ? 0 : warp_index() % kColumnWarps * (8 * kSumBlocks); }
  // And of dq: four warps along the rows, two along the columns.
  DEVICE static int first_dq_row() { return warp_index() / 2 * 16; }
  DEVICE static int first_dq_column() { return warp_index() % 2 * (kHeadDim / 2); }
};

// sums += a b^T, 16 rows of `a` from `a_row` on against those of `b` from `b_row` on.
template <int kHeadDim, int kBlocks, class A, class B>
DEVICE void multiply_rows(FragmentC (&sums)[kBlocks], const A& a, int a_row, const B& b, int b_row) {
  const int lane = opaque(lane_index());
  UNROLL
  for (int column = 0; column < kHeadDim; column += 16) {
    const auto left = load_a(a, a_row, column, lane);
    UNROLL
    for (int n = 0; n < kBlocks; n += 2) {
      const auto right = load_b_of_rows(b, b_row + 8 * n, column, lane);
      mma(sums[n], left, right.first);
      mma(sums[n + 1], left, right.second);
    }
  }
}

// sums += a b for 16 columns of `a`, given as an operand, and rows [row, row + 16) of `b`.
template <int kBlocks, class T, class B>
DEVICE void multiply_step(FragmentC (&sums)[kBlocks], const FragmentA<T>& a, const B& b, int row, int first_column,
                          int lane) {
  UNROLL
  for (int n = 0; n < kBlocks; n += 2) {
    const auto right = load_b(b, row, first_column + 8 * n, lane);
    mma(sums[n], a, right.first);
    mma(sums[n + 1], a, right.second);
  }
}

// Scores become weights, dweights dscores: weights = exp2(scores - lse), dscores = weights * (dweights - delta), times
// the derivative of the softcap. Rows of the fragments are keys, columns queries from first_row() on.
template <class Config>
DEVICE void differentiate_scores(FragmentC (&scores)[Config::kScoreBlocks], FragmentC (&dweights)[Config::kScoreBlocks],
                                 const BackwardRows<Config::kRows, Config::kGeneral>& rows, const ScoreScale& scale) {
  UNROLL
  for (int n = 0; n < Config::kScoreBlocks; ++n) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = Config::first_row() + 8 * n + column_of_value(i);
      const float lse = rows.lse_log2.load(row), delta = rows.delta.load(row);
      UNROLL
      for (int half = 0; half < 2; ++half) {
        float& x = scores[n].values[2 * half + i];
        float& d = dweights[n].values[2 * half + i];
        float bend = 0;  // tanh of the capped score
        if (Config::kGeneral && scale.over_cap != 0) {
          bend = 1 - 2 * reciprocal_approximate(exp2_approximate(x * scale.over_cap) + 1);
          x = bend * scale.cap_log2;
        } else {
          x *= scale.log2;
        }
        x = exp2_approximate(x - lse);
        d = x * (d - delta);
        if constexpr (Config::kGeneral) d *= 1 - bend * bend;
      }
    }
  }
}

// Weights and dscores of keys that a query does not see become 0. The tile starts at key `first_key`.
template <class Config>
DEVICE void drop_unseen(FragmentC (&weights)[Config::kScoreBlocks], FragmentC (&dscores)[Config::kScoreBlocks],
                        const Rectangle& r, const QueryPlaces<Config::kRows, Config::kGeneral>& queries,
                        const KeyMask<Config::kGeneral, Config::kKeys>& keys, int first_key) {
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const int j = Config::first_key() + row_of_value(2 * half), key = int(r.key_start) + first_key + j;
    const int end = keys.end.load(j);
    int oldest = 0;
    if constexpr (Config::kGeneral) oldest = int(keys.depth.load(j));
    UNROLL
    for (int n = 0; n < Config::kScoreBlocks; ++n) {
      UNROLL
      for (int i = 0; i < 2; ++i) {
        const int row = Config::first_row() + 8 * n + column_of_value(i), query = queries.position.load(row);
        bool sees = key <= query && query < end;
        if constexpr (Config::kGeneral) {
          const int depth = queries.depth.load(row);  // by all lanes, whatever they see
          sees = sees && (!r.window || depth - oldest < r.window);
        }
        if (!sees) weights[n].values[2 * half + i] = dscores[n].values[2 * half + i] = 0;
      }
    }
  }
}

// One item of the plan for one KV head: a key tile walks the query tiles that see it, and keeps dk and dv in registers.
// Tickets go from the last key tile to the first, and every query tile sums its dq in that order: a block that waits
// for its turn waits for a lower ticket, so there is always one that need not. Query tiles come in ascending order, so
// on a chain each block is one key tile behind the block that it follows, and seldom waits.
template <class Config>
GLOBAL void LAUNCH_BOUNDS(Config::kThreads, Config::kBlocks)
    tree_attention_backward(const AttentionBackwardParams p, const BackwardTiling tiling) {
  using T = typename Config::T;
  SHARED(typename Config::Smem, smem);
  require(DevicePlan(tiling.plan).backward().fits(p.rectangle, tiling.tokens, Config::kKeys, tiling.cut_items),
          "the plan does not fit this call: make one with regrow.plan(tree, ...)");
  if (thread_index() == 0) smem.item.take(tiling.plan, tiling.ticket, p.kv_heads);
  sync_block();
  if (smem.item[BlockItem::kIndex] < 0) return;
  const auto plan = [&] { return DevicePlan(tiling.plan + smem.item[BlockItem::kPlan]); };
  const auto first_key = [&] { return smem.item[BlockItem::kKeyTile] * Config::kKeys; };
  const auto unit_of = [&](int unit) { return smem.item[BlockItem::kKvHead] * tiling.units_of_group + unit; };

  const auto copy_keys = [&](SharedTile<T, Config::kKeys, Config::kHeadDim>& tile, const Rows& rows, int num_columns) {
    const T* values = static_cast<const T*>(rows.data) + smem.item[BlockItem::kKvHead] * rows.head_stride +
                      first_key() * rows.row_stride;
    UNROLL
    for (int row = 0; row < Config::kKeys; row += kKeyTile)
      copy_key_rows<Config::kThreads>(tile, row, values + row * rows.row_stride, rows.row_stride,
                                      plan().seen_keys((first_key() + row) / kKeyTile), num_columns);
  };
  const auto copy_queries = [&](const QueryTileWalk& walk, int stage) {
    const QueryTile queries(p, tiling, walk.tile(), unit_of(walk.unit()));
    copy_query_rows<Config::kThreads>(smem.q[stage], p.q, queries, p.head_dim);
    copy_query_rows<Config::kThreads>(smem.dout[stage], p.dout, queries, p.value_dim);
    smem.rows[stage].places.fill(p.rectangle, queries);
    const int row = opaque(thread_index());
    // A step ahead, by a thread that copies no row's values: where it is asked for, the block would wait for the
    // look-ups.
    if (p.dq && row == Config::kThreads - 1)
      smem.rows[stage].rank.store(0, plan().later_key_tiles(walk.tile(), smem.item[BlockItem::kKeyTile]));
    if (row >= Config::kRows) return;
    if (row < 2) smem.rows[stage].tile_and_unit.store(row, row == 0 ? walk.tile() : unit_of(walk.unit()));
    const bool real = queries.has(row);
    const int64_t at = real ? queries.head(row) * p.rectangle.num_queries + queries.query(row) : 0;
    copy_async(smem.rows[stage].lse_log2.address(row), tiling.lse_log2 + at, real);
    copy_async(smem.rows[stage].delta.address(row), tiling.delta + at, real);
  };

  FragmentC dk[Config::kSumBlocks], dv[Config::kSumBlocks];
  QueryTileWalk walk(tiling.plan, smem.item, tiling.units_of_group);
  copy_keys(smem.k, p.k, p.head_dim);
  copy_keys(smem.v, p.v, p.value_dim);
  smem.mask.copy(p.rectangle, first_key());
  copy_queries(walk, 0);
  commit_copies();
  bool more = !walk.done();
  for (int stage = 0; more; stage = (stage + 1) % Config::kStages) {
    wait_copies<0>();
    sync_block();  // this stage has landed, and nobody reads the other one
    // Rows beyond the last are masked, as are keys.
    const bool partial = walk.partial() || tiling.tokens * tiling.heads < Config::kRows ||
                         (walk.tile() + 1) * tiling.tokens > p.rectangle.num_queries ||
                         first_key() > p.rectangle.num_keys - Config::kKeys;
    walk.advance();
    more = !walk.done();
    if (Config::kStages > 1 && more) {
      copy_queries(walk, (stage + 1) % Config::kStages);
      commit_copies();
    }
    const auto& q = smem.q[stage];
    const auto& dout = smem.dout[stage];
    FragmentC scores[Config::kScoreBlocks], dweights[Config::kScoreBlocks];
    multiply_rows<Config::kHeadDim>(scores, smem.k, Config::first_key(), q, Config::first_row());
    multiply_rows<Config::kHeadDim>(dweights, smem.v, Config::first_key(), dout, Config::first_row());
    differentiate_scores<Config>(scores, dweights, smem.rows[stage], tiling.scale);
    if (partial) drop_unseen<Config>(scores, dweights, p.rectangle, smem.rows[stage].places, smem.mask, first_key());
    FragmentA<T> weights[Config::kScoreBlocks / 2], dscores[Config::kScoreBlocks / 2];
    as_operands(weights, scores);
    as_operands(dscores, dweights);
    store_operands(smem.dscores, Config::first_key(), Config::first_row(), dscores);
    if constexpr (Config::kColumnWarps > 1)
      store_operands(smem.weights, Config::first_key(), Config::first_row(), weights);
    sync_block();  // all dscores of the tile are there

    const int lane = opaque(lane_index());
    UNROLL
    for (int row = 0; row < Config::kRows; row += 16) {
      if constexpr (Config::kColumnWarps > 1) {
        const auto p_operand = load_a(smem.weights, Config::first_key(), row, lane);
        const auto ds_operand = load_a(smem.dscores, Config::first_key(), row, lane);
        multiply_step(dv, p_operand, dout, row, Config::first_column(), lane);
        multiply_step(dk, ds_operand, q, row, Config::first_column(), lane);
      } else {
        multiply_step(dv, weights[row / 16], dout, row, 0, lane);
        multiply_step(dk, dscores[row / 16], q, row, 0, lane);
      }
    }
    if (p.dq) {
      const int tile = smem.rows[stage].tile_and_unit.load(0), unit = smem.rows[stage].tile_and_unit.load(1);
      const auto turn = [&] { return tiling.query_turns + int64_t(tile) * tiling.units + unit; };
      const QueryTile queries(p, tiling, tile, unit);
      UNROLL
      for (int part = 0; part < Config::kQueryParts; ++part) {
        const int column = Config::first_dq_column() + part * 8 * Config::kQueryBlocks;
        FragmentC dq[Config::kQueryBlocks];
        UNROLL
        for (int key = 0; key < Config::kKeys; key += 16)
          multiply_step(dq, load_a_of_columns(smem.dscores, key, Config::first_dq_row(), lane), smem.k, key, column,
                        lane);
        if (part == 0) {
          if (thread_index() == 0) {
            const int rank = smem.rows[stage].rank.load(0);
            smem.item.fields.store(BlockItem::kRank, rank);  // the stage may be overwritten before the turn is passed
            wait_for_turn(turn(), rank);
          }
          sync_block();  // it is this block's turn
        }
        add_rows(dq, tiling.score_scale, column, p.head_dim, [&](int half) -> float* {
          const int row = Config::first_dq_row() + row_of_value(2 * half);
          if (!queries.has(row)) return nullptr;
          return static_cast<float*>(p.dq) + (queries.query(row) * p.query_heads + queries.head(row)) * p.head_dim;
        });
      }
      sync_block();  // all of it is added
      if (thread_index() == 0) pass_turn(turn(), smem.item[BlockItem::kRank] + 1);
    }
    if (Config::kStages == 1 && more) {
      if (!p.dq) sync_block();  // nobody reads the stage; with dq, the barrier before the turn was passed says so
      copy_queries(walk, 0);
      commit_copies();
    }
  }

  if (!p.dk) return;
  // The items of a key tile add in the order of their tickets, which is theirs reversed.
  const int key_tile = smem.item[BlockItem::kKeyTile], kv_head = smem.item[BlockItem::kKvHead];
  const int later = plan().later_items(smem.item[BlockItem::kIndex]);
  int* turn = tiling.key_turns + int64_t(key_tile) * p.kv_heads + kv_head;
  if (thread_index() == 0) wait_for_turn(turn, later);
  sync_block();
  const auto key_row = [&](void* sums, int dim) {
    return [=, &p](int half) -> float* {
      const int64_t key = key_tile * Config::kKeys + Config::first_key() + row_of_value(2 * half);
      return key < p.rectangle.num_keys ? static_cast<float*>(sums) + (key * p.kv_heads + kv_head) * dim : nullptr;
    };
  };
  add_rows(dk, tiling.score_scale, Config::first_column(), p.head_dim, key_row(p.dk, p.head_dim));
  add_rows(dv, 1, Config::first_column(), p.value_dim, key_row(p.dv, p.value_dim));
  sync_block();
  if (thread_index() == 0) pass_turn(turn, later + 1);
}

// launch(shape, kernel, p, tiling) with the instantiation that p asks for, of those with head dim kHeadDim.
template <int kHeadDim, class Launch>
void dispatch_tree_attention_backward(const AttentionBackwardParams& p, const BackwardTiling& tiling,
                                      const Launch& launch) {
  const auto run = [&]<class T, bool kGeneral>() {
    using Config = TreeAttentionBackwardConfig<T, kHeadDim, kGeneral>;
    launch({.blocks = tiling.max_items * p.kv_heads,
            .threads = Config::kThreads,
            .shared_bytes = int(sizeof(typename Config::Smem))},
           &tree_attention_backward<Config>, p, tiling);
  };
  const bool general = p.softcap != 0 || p.rectangle.window != 0;
  if (p.q.dtype == DType::kBFloat16)
    general ? run.template operator()<bf16, true>() : run.template operator()<bf16, false>();
  else
    general ? run.template operator()<fp16, true>() : run.template operator()<fp16, false>();
}

}  // namespace regrow
