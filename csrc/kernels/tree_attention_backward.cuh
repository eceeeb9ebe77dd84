#pragma once

#include "kernels/attention_backward_rows.cuh"
#include "kernels/attention_tiles.cuh"
#include "platform/turns.h"
#include "tile/operands.h"

namespace regrow {

// Two neighbouring columns of fp32 sums.
struct alignas(8) SumPair {
  float first, second;
};

template <int kRows, bool kGeneral>
struct BackwardRows {
  SharedArray<float, kRows> lse_log2, delta;
  QueryPlaces<kRows, kGeneral> places;
};

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
  static constexpr int kQueryBlocks = kHeadDim / 2 / 8;
  static_assert(kTable.head_dim == kHeadDim && kKeys / 16 * kColumnWarps == kThreads / kWarpLanes);

  struct Smem {
    SharedTile<T, kKeys, kHeadDim> k, v;
    SharedTile<T, kRows, kHeadDim> q[kStages], dout[kStages];
    SharedTile<T, kKeys, kRows> dscores;                           // [key, row]
    SharedTile<T, (kColumnWarps > 1 ? kKeys : 8), kRows> weights;  // [key, row], where warps exchange them
    BackwardRows<kRows, kGeneral> rows[kStages];
    KeyMask<kGeneral, kKeys> mask;
    SharedArray<int, 1> ticket;
  };

  // Of the calling warp: its keys, the rows of its scores, and the columns of its sums.
  DEVICE static int first_key() { return warp_index() / kColumnWarps * 16; }
  DEVICE static int first_row() { return kColumnWarps == 1 ? 0 : warp_index() % kColumnWarps * (8 * kScoreBlocks); }
  DEVICE static int first_column() { return kColumnWarps == 1 ? 0 : warp_index() % kColumnWarps * (8 * kSumBlocks); }
  // And of dq: four warps along the rows, two along the columns.
  DEVICE static int first_dq_row() { return warp_index() / 2 * 16; }
  DEVICE static int first_dq_column() { return warp_index() % 2 * (8 * kQueryBlocks); }
};

// The query tiles of an item, each for every unit of the group.
class QueryTileWalk {
 public:
  DEVICE QueryTileWalk(const DevicePlan& plan, const BackwardItem& item, int units)
      : plan_(plan), run_(item.run_begin), run_end_(item.run_end), units_(units) {
    if (!done()) enter_run();
  }
  DEVICE bool done() const { return run_ >= run_end_; }
  DEVICE void advance() {
    if (++unit_ < units_) return;
    unit_ = 0;
    if (++tile_ < tile_end_) return;
    if (++run_ < run_end_) enter_run();
  }
  DEVICE int tile() const { return tile_; }
  DEVICE int unit() const { return unit_; }  // of the group
  DEVICE bool partial() const { return partial_; }

 private:
  DEVICE void enter_run() {
    const TileRun run = load_global(plan_.backward_runs() + run_);
    tile_ = run.begin;
    tile_end_ = run.end;
    partial_ = run.partial;
  }

  DevicePlan plan_;
  int run_, run_end_, units_;
  int tile_ = 0, tile_end_ = 0, unit_ = 0;
  bool partial_ = false;
};

// sums += a b^T, 16 rows of `a` from `a_row` on against those of `b` from `b_row` on.
template <int kHeadDim, int kBlocks, class A, class B>
DEVICE void multiply_rows(FragmentC (&sums)[kBlocks], const A& a, int a_row, const B& b, int b_row) {
  UNROLL
  for (int column = 0; column < kHeadDim; column += 16) {
    const auto left = load_a(a, a_row, column);
    UNROLL
    for (int n = 0; n < kBlocks; n += 2) {
      const auto right = load_b_of_rows(b, b_row + 8 * n, column);
      mma(sums[n], left, right.first);
      mma(sums[n + 1], left, right.second);
    }
  }
}

// sums += a b for 16 columns of `a`, given as an operand, and rows [row, row + 16) of `b`.
template <int kBlocks, class T, class B>
DEVICE void multiply_step(FragmentC (&sums)[kBlocks], const FragmentA<T>& a, const B& b, int row, int first_column) {
  UNROLL
  for (int n = 0; n < kBlocks; n += 2) {
    const auto right = load_b(b, row, first_column + 8 * n);
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
        if constexpr (Config::kGeneral) sees = sees && (!r.window || queries.depth.load(row) - oldest < r.window);
        if (!sees) weights[n].values[2 * half + i] = dscores[n].values[2 * half + i] = 0;
      }
    }
  }
}

// Adds a warp's 16 rows to fp32 sums in memory: to + row(half) * stride, where row(half) is the thread's.
template <int kBlocks, class RowOf>
DEVICE void add_rows(const FragmentC (&sums)[kBlocks], float factor, int first_column, int num_columns,
                     const RowOf& row_of) {
  UNROLL
  for (int half = 0; half < 2; ++half) {
    float* row = row_of(half);
    if (!row) continue;
    UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      const int column = first_column + 8 * n;
      if (column >= num_columns) continue;
      SumPair* at = reinterpret_cast<SumPair*>(row + column) + lane_index() % 4;
      const SumPair before = load_global(at);
      store_global(at, SumPair{before.first + sums[n].values[2 * half] * factor,
                               before.second + sums[n].values[2 * half + 1] * factor});
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
  const DevicePlan plan = DevicePlan(tiling.plan).backward();
  require(plan.fits(p.rectangle, tiling.tokens, Config::kKeys, tiling.share),
          "the plan does not fit this call: make one with regrow.plan(tree, ...)");
  if (thread_index() == 0) smem.ticket.store(0, take_ticket(tiling.ticket));
  sync_block();
  const int ticket = smem.ticket.load(0), kv_head = ticket % p.kv_heads;
  const int index = plan.field(&PlanHeader::num_backward_items) - 1 - ticket / p.kv_heads;
  if (index < 0) return;
  const BackwardItem item = plan.backward_item(index);
  const int first_key = item.key_tile * Config::kKeys;

  const auto copy_keys = [&](SharedTile<T, Config::kKeys, Config::kHeadDim>& tile, const Rows& rows, int num_columns) {
    const T* values = static_cast<const T*>(rows.data) + kv_head * rows.head_stride + first_key * rows.row_stride;
    UNROLL
    for (int row = 0; row < Config::kKeys; row += kKeyTile)
      copy_key_rows<Config::kThreads>(tile, row, values + row * rows.row_stride, rows.row_stride,
                                      plan.seen_keys((first_key + row) / kKeyTile), num_columns);
  };
  const auto copy_queries = [&](const QueryTileWalk& walk, int stage) {
    const QueryTile queries(p, tiling, walk.tile(), kv_head * tiling.units_of_group + walk.unit());
    copy_query_rows<Config::kThreads>(smem.q[stage], p.q, queries, p.head_dim);
    copy_query_rows<Config::kThreads>(smem.dout[stage], p.dout, queries, p.value_dim);
    smem.rows[stage].places.fill(p.rectangle, queries);
    const int row = thread_index();
    if (row >= Config::kRows) return;
    const bool real = queries.has(row);
    const int64_t at = real ? queries.head(row) * p.rectangle.num_queries + queries.query(row) : 0;
    copy_async(smem.rows[stage].lse_log2.address(row), tiling.lse_log2 + at, real);
    copy_async(smem.rows[stage].delta.address(row), tiling.delta + at, real);
  };

  FragmentC dk[Config::kSumBlocks], dv[Config::kSumBlocks];
  QueryTileWalk walk(plan, item, tiling.units_of_group);
  copy_keys(smem.k, p.k, p.head_dim);
  copy_keys(smem.v, p.v, p.value_dim);
  smem.mask.copy(p.rectangle, first_key);
  copy_queries(walk, 0);
  commit_copies();
  for (int stage = 0; !walk.done(); stage = (stage + 1) % Config::kStages) {
    wait_copies<0>();
    sync_block();  // this stage has landed, and nobody reads the other one
    QueryTileWalk next = walk;
    next.advance();
    if (Config::kStages > 1 && !next.done()) {
      copy_queries(next, (stage + 1) % Config::kStages);
      commit_copies();
    }
    const auto& q = smem.q[stage];
    const auto& dout = smem.dout[stage];
    FragmentC scores[Config::kScoreBlocks], dweights[Config::kScoreBlocks];
    multiply_rows<Config::kHeadDim>(scores, smem.k, Config::first_key(), q, Config::first_row());
    multiply_rows<Config::kHeadDim>(dweights, smem.v, Config::first_key(), dout, Config::first_row());
    const QueryTile queries(p, tiling, walk.tile(), kv_head * tiling.units_of_group + walk.unit());
    differentiate_scores<Config>(scores, dweights, smem.rows[stage], tiling.scale);
    if (walk.partial() || queries.num_rows < Config::kRows || first_key > p.rectangle.num_keys - Config::kKeys)
      drop_unseen<Config>(scores, dweights, p.rectangle, smem.rows[stage].places, smem.mask, first_key);
    FragmentA<T> weights[Config::kScoreBlocks / 2], dscores[Config::kScoreBlocks / 2];
    as_operands(weights, scores);
    as_operands(dscores, dweights);
    store_operands(smem.dscores, Config::first_key(), Config::first_row(), dscores);
    if constexpr (Config::kColumnWarps > 1)
      store_operands(smem.weights, Config::first_key(), Config::first_row(), weights);
    sync_block();  // all dscores of the tile are there

    UNROLL
    for (int row = 0; row < Config::kRows; row += 16) {
      if constexpr (Config::kColumnWarps > 1) {
        multiply_step(dv, load_a(smem.weights, Config::first_key(), row), dout, row, Config::first_column());
        multiply_step(dk, load_a(smem.dscores, Config::first_key(), row), q, row, Config::first_column());
      } else {
        multiply_step(dv, weights[row / 16], dout, row, 0);
        multiply_step(dk, dscores[row / 16], q, row, 0);
      }
    }
    if (p.dq) {
      FragmentC dq[Config::kQueryBlocks];
      UNROLL
      for (int key = 0; key < Config::kKeys; key += 16)
        multiply_step(dq, load_a_of_columns(smem.dscores, key, Config::first_dq_row()), smem.k, key,
                      Config::first_dq_column());
      int* turn =
          tiling.query_turns + int64_t(walk.tile()) * tiling.units + kv_head * tiling.units_of_group + walk.unit();
      const int rank = plan.later_key_tiles(walk.tile(), item.key_tile);
      if (thread_index() == 0) wait_for_turn(turn, rank);
      sync_block();  // it is this block's turn
      add_rows(dq, tiling.score_scale, Config::first_dq_column(), p.head_dim, [&](int half) -> float* {
        const int row = Config::first_dq_row() + row_of_value(2 * half);
        if (!queries.has(row)) return nullptr;
        return static_cast<float*>(p.dq) + (queries.query(row) * p.query_heads + queries.head(row)) * p.head_dim;
      });
      sync_block();  // all of it is added
      if (thread_index() == 0) pass_turn(turn, rank + 1);
    }
    if (Config::kStages == 1 && !next.done()) {
      sync_block();  // nobody reads the stage
      copy_queries(next, 0);
      commit_copies();
    }
    walk = next;
  }

  if (!p.dk) return;
  // The items of a key tile add in the order of their tickets, which is theirs reversed.
  int later = 0;
  while (index + later + 1 < plan.field(&PlanHeader::num_backward_items) &&
         plan.backward_item(index + later + 1).key_tile == item.key_tile)
    ++later;
  int* turn = tiling.key_turns + int64_t(item.key_tile) * p.kv_heads + kv_head;
  if (thread_index() == 0) wait_for_turn(turn, later);
  sync_block();
  const auto key_row = [&](void* sums, int dim) {
    return [=, &p](int half) -> float* {
      const int64_t key = first_key + Config::first_key() + row_of_value(2 * half);
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
