#pragma once

// What one block of the attention works on: its query tile, and key tiles one after the other.
#include <cmath>

#include "kernels/attention_tiling.h"
#include "kernels/device_plan.cuh"
#include "platform/numbers.h"
#include "platform/require.h"
#include "tile/copy.h"
#include "tile/mma.h"

namespace regrow {

// The queries of a tile: row r is head r % heads of token r / heads.
struct QueryTile {
  int64_t first_query;
  int first_head, heads, inverse_heads;
  int num_rows;

  DEVICE QueryTile(const AttentionParams& p, const RowTiling& tiling, int tile, int unit)
      : first_query(int64_t(tile) * tiling.tokens),
        first_head(unit * tiling.heads),
        heads(tiling.heads),
        inverse_heads(tiling.inverse_heads) {
    const int64_t left = p.rectangle.num_queries - first_query;
    num_rows = int(left < tiling.tokens ? left : tiling.tokens) * heads;
  }
  DEVICE bool has(int row) const { return row < num_rows; }
  DEVICE int token(int row) const { return row * inverse_heads >> 16; }  // row / heads
  DEVICE int64_t query(int row) const { return first_query + token(row); }
  DEVICE int head(int row) const { return first_head + row - token(row) * heads; }
  DEVICE float* lse_of(const AttentionForwardParams& p, int row) const {
    return static_cast<float*>(p.lse) + head(row) * p.rectangle.num_queries + query(row);
  }
  template <class Out>
  DEVICE Out* out_of(const AttentionForwardParams& p, int row) const {
    return static_cast<Out*>(p.out) + (query(row) * p.query_heads + head(row)) * p.value_dim;
  }
};

// The rows of a query tile in a tensor [Tq, Hq, num_columns], zeros beyond the last.
template <int kThreads, class T, int kRows, int kHeadDim>
DEVICE void copy_query_rows(SharedTile<T, kRows, kHeadDim>& tile, const Rows& rows, const QueryTile& queries,
                            int num_columns AND_CALL_SITE) {
  const auto source = [&](int row) -> RowSource<T> {
    const T* values = static_cast<const T*>(rows.data);
    if (!queries.has(row)) return {values, false};
    return {values + queries.query(row) * rows.row_stride + queries.head(row) * rows.head_stride, true};
  };
  copy_rows_async<kThreads>(tile, num_columns, source AND_SITE);
}

// Where the rows of a query tile stand. In shared memory, since only partial tiles ask.
template <int kRows, bool kWindow>
struct QueryPlaces {
  SharedArray<int, kRows> position;  // -1 beyond the last row, which then sees nothing
  SharedArray<int, kWindow ? kRows : 1> depth;

  DEVICE void fill(const Rectangle& r, const QueryTile& queries) {
    const int row = opaque(thread_index());
    if (row >= kRows) return;
    int64_t at = -1;
    if (queries.has(row)) {
      const int64_t query = queries.query(row);
      at = r.query_index ? load_global(r.query_index + query) : r.query_start + query;
    }
    position.store(row, int(at));
    if constexpr (kWindow) depth.store(row, at < 0 ? 0 : int(load_global(r.position_ids + at)));
  }
};

// 64 keys or values from `rows`, the first of them, to the tile's rows from `to` on, zeros where they are not real.
// Rolled: the addresses of all rows at once would cost more registers than the loop costs time.
template <int kThreads, class T, int kRows, int kHeadDim>
DEVICE void copy_key_rows(SharedTile<T, kRows, kHeadDim>& tile, int to, const T* rows, int64_t stride, uint64_t real,
                          int num_columns AND_CALL_SITE) {
  constexpr int kChunks = kHeadDim / 8, kStep = kThreads / kChunks;
  const int first_row = thread_index() / kChunks, column = thread_index() % kChunks * 8;
  const T* from = rows + first_row * stride + column;
  real = column < num_columns ? real >> first_row : 0;
  NO_UNROLL
  for (int row = first_row; row < kKeyTile; row += kStep) {
    copy_async16(tile.chunk(to + row, column), from, real & 1 AND_SITE);
    from += kStep * stride;
    real >>= kStep;
  }
}

// The key tiles of an item, in order. Little is kept in registers, and the rest asked again.
class KeyTileWalk {
 public:
  DEVICE KeyTileWalk(const DevicePlan& plan, const ForwardItem& item, const Rectangle& r)
      : plan_(plan), num_keys_(int(r.num_keys)), run_(item.run_begin), run_end_(item.run_end) {
    if (!done()) enter_run();
  }
  DEVICE bool done() const { return run_ >= run_end_; }
  DEVICE void advance() {
    if (++tile_ < tile_end_) return;
    if (++run_ < run_end_) enter_run();
  }

  // Of the current tile: its first key, of the rectangle's; whether the mask decides; and bit j: key first_key() + j is
  // there and some query sees it. The others are read as zeros.
  DEVICE int first_key() const { return tile_ * kKeyTile; }
  DEVICE bool partial() const { return run_is_partial_ || tile_ * kKeyTile > num_keys_ - kKeyTile; }
  DEVICE uint64_t real_keys() const { return partial() ? plan_.seen_keys(tile_) : ~uint64_t(0); }

 private:
  DEVICE void enter_run() {
    const TileRun run = load_global(plan_.forward_runs() + run_);
    tile_ = run.begin;
    tile_end_ = run.end;
    run_is_partial_ = run.partial;
  }

  DevicePlan plan_;
  int num_keys_;
  int run_, run_end_;
  int tile_ = 0, tile_end_ = 0;
  bool run_is_partial_ = false;
};

// What the mask asks of the keys of a tile.
template <bool kWindow, int kKeys = kKeyTile>
struct KeyMask {
  SharedArray<int32_t, kKeys> end;  // subtree_end; 0 beyond the last key
  SharedArray<int64_t, kWindow ? kKeys : 1> depth;

  DEVICE void copy(const Rectangle& r, int first_key) {
    const int j = thread_index();
    if (j >= kKeys) return;
    const bool real = first_key + j < r.num_keys;
    const int64_t at = r.key_start + first_key + (real ? j : 0);
    copy_async(end.address(j), r.subtree_end + at, real);
    if constexpr (kWindow) copy_async(depth.address(j), r.position_ids + at, real);
  }
};

// Scores of keys that a query does not see become -inf. `scores` are those of the tile's keys from `column` on and of
// the tile's rows from `row` on; the tile starts at key `first_key`.
template <int kRowBlocks, int kBlocks, int kRows, bool kWindow>
DEVICE void hide_unseen(FragmentC (&scores)[kRowBlocks][kBlocks], const Rectangle& r,
                        const QueryPlaces<kRows, kWindow>& queries, const KeyMask<kWindow>& keys, int first_key,
                        int row, int column) {
  UNROLL
  for (int n = 0; n < kBlocks; ++n) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int j = column + 8 * n + column_of_value(i), key = int(r.key_start) + first_key + j;
      const int end = keys.end.load(j);
      int oldest = 0;
      if constexpr (kWindow) oldest = int(keys.depth.load(j));
      UNROLL
      for (int b = 0; b < kRowBlocks; ++b) {
        UNROLL
        for (int half = 0; half < 2; ++half) {
          const int of_row = row + 16 * b + row_of_value(2 * half);
          const int query = queries.position.load(of_row);
          bool sees = key <= query && query < end;
          if constexpr (kWindow) sees = sees && (!r.window || queries.depth.load(of_row) - oldest < r.window);
          if (!sees) scores[b][n].values[2 * half + i] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace regrow
