#pragma once

// What one block of the attention works on: its query tile, and key tiles one after the other.
#include "kernels/attention_tiling.h"
#include "kernels/device_plan.cuh"
#include "platform/require.h"
#include "platform/numbers.h"
#include "tile/copy.h"
#include "tile/mma.h"

namespace regrow {

// The queries of a tile: row r is head r % heads of token r / heads.
struct QueryTile {
  int64_t first_query;
  int first_head, heads;
  int num_rows;

  DEVICE QueryTile(const AttentionParams& p, const ForwardTiling& tiling, int tile, int unit)
      : first_query(int64_t(tile) * tiling.tokens), first_head(unit * tiling.heads), heads(tiling.heads) {
    const int64_t left = p.rectangle.num_queries - first_query;
    num_rows = int(left < tiling.tokens ? left : tiling.tokens) * heads;
  }
  DEVICE bool has(int row) const { return row < num_rows; }
  DEVICE int64_t query(int row) const { return first_query + row / heads; }
  DEVICE int head(int row) const { return first_head + row % heads; }
  DEVICE int kv_head(const AttentionParams& p) const { return first_head / (p.query_heads / p.kv_heads); }
};

// Where the rows of a thread's fragments stand: rows l/4 and l/4 + 8 of each block of 16 rows.
template <int kRowBlocks, bool kWindow>
struct QueryPlaces {
  int position[kRowBlocks][2];                // -1 beyond the last row, which then sees nothing
  int depth[kWindow ? kRowBlocks : 1][2];

  DEVICE QueryPlaces(const Rectangle& r, const QueryTile& queries, int first_row) {
    UNROLL
    for (int b = 0; b < kRowBlocks; ++b) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * b + 8 * half + lane_index() / 4;
        int64_t at = -1;
        if (queries.has(row)) {
          const int64_t query = queries.query(row);
          at = r.query_index ? load_global(r.query_index + query) : r.query_start + query;
        }
        position[b][half] = int(at);
        if constexpr (kWindow) depth[b][half] = at < 0 ? 0 : int(load_global(r.position_ids + at));
      }
    }
  }
};

struct KeyTile {
  int64_t first;   // key, of the rectangle's
  bool partial;    // the mask decides
  uint64_t real;   // bit j: key first + j is there and some query sees it; the others are read as zeros
};

// The key tiles of an item, in order.
class KeyTileWalk {
 public:
  DEVICE KeyTileWalk(const DevicePlan& plan, const ForwardItem& item, int64_t num_keys)
      : plan_(plan), runs_(plan.forward_runs()), run_(item.run_begin), run_end_(item.run_end), num_keys_(num_keys) {
    if (!done()) enter_run();
  }
  DEVICE bool done() const { return run_ >= run_end_; }
  DEVICE KeyTile current() const {
    const int64_t first = int64_t(tile_) * kKeyTile;
    const bool partial = partial_ || first + kKeyTile > num_keys_;
    return {first, partial, partial ? plan_.seen_keys(tile_) : ~uint64_t(0)};
  }
  DEVICE void advance() {
    if (++tile_ < tile_end_) return;
    if (++run_ < run_end_) enter_run();
  }

 private:
  DEVICE void enter_run() {
    const TileRun run = load_global(runs_ + run_);
    tile_ = run.begin;
    tile_end_ = run.end;
    partial_ = run.partial;
  }

  DevicePlan plan_;
  const TileRun* runs_;
  int run_, run_end_;
  int tile_ = 0, tile_end_ = 0;
  bool partial_ = false;
  int64_t num_keys_;
};

// What the mask asks of the keys of a tile.
template <bool kWindow>
struct KeyMask {
  SharedArray<int32_t, kKeyTile> end;                    // subtree_end; 0 beyond the last key
  SharedArray<int64_t, kWindow ? kKeyTile : 1> depth;

  DEVICE void copy(const Rectangle& r, const KeyTile& keys) {
    const int j = thread_index();
    if (j >= kKeyTile) return;
    const bool real = keys.first + j < r.num_keys;
    const int64_t at = r.key_start + keys.first + (real ? j : 0);
    copy_async(end.address(j), r.subtree_end + at, real);
    if constexpr (kWindow) copy_async(depth.address(j), r.position_ids + at, real);
  }
};

// Scores of keys that a query does not see become -inf. `scores` start at key `first_key` of the tile.
template <int kRowBlocks, int kBlocks, bool kWindow>
DEVICE void hide_unseen(FragmentC (&scores)[kRowBlocks][kBlocks], const Rectangle& r, const KeyTile& keys,
                        const KeyMask<kWindow>& mask, const QueryPlaces<kRowBlocks, kWindow>& queries, int first_key) {
  UNROLL
  for (int n = 0; n < kBlocks; ++n) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int j = first_key + 8 * n + column_of_value(i);
      const int position = int(r.key_start + keys.first) + j, end = mask.end.load(j);
      int depth = 0;
      if constexpr (kWindow) depth = int(mask.depth.load(j));
      UNROLL
      for (int b = 0; b < kRowBlocks; ++b) {
        UNROLL
        for (int half = 0; half < 2; ++half) {
          const int query = queries.position[b][half];
          bool sees = position <= query && query < end;
          if constexpr (kWindow) sees = sees && (!r.window || queries.depth[b][half] - depth < r.window);
          if (!sees) scores[b][n].values[2 * half + i] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace regrow
