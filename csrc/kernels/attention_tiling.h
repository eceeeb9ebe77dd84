#pragma once

// How a launch of the forward cuts rows and heads. Host and device.
#include "kernels/attention_configurations.h"
#include "kernels/attention_params.h"

namespace regrow {

// A score in units of log2, what exp2 is taken of: score * scale, or softcap * tanh(score * scale / softcap). Made on
// the host: as constants these take no registers.
struct ScoreScale {
  float log2;
  float over_cap, cap_log2;  // tanh(y) is taken of 2^(2 y log2 e); 0 without a softcap
};

inline ScoreScale score_scale(const AttentionParams& p) {
  constexpr double kLog2E = 1.4426950408889634;
  return {float(p.scale * kLog2E), p.softcap != 0 ? float(2 * kLog2E * p.scale / p.softcap) : 0,
          float(p.softcap * kLog2E)};
}

// A query tile holds the rows (token, head) of `tokens` queries and `heads` heads that share a KV head, token by token.
struct RowTiling {
  int rows;           // of the configuration, at least tokens * heads
  int tokens;         // queries of a tile, as planned
  int heads;          // query heads of a tile
  int inverse_heads;  // row / heads is row * inverse_heads >> 16: exact below 128 rows and spares a division
  int units;          // query_heads / heads
};

inline RowTiling row_tiling(const AttentionParams& p, int rows) {
  const int heads = heads_of_tile(p.query_heads / p.kv_heads, rows);
  return {rows, rows / heads, heads, (65'536 + heads - 1) / heads, p.query_heads / heads};
}

// Each item of the plan is run for each unit of heads.
struct ForwardTiling : RowTiling {
  const int32_t* plan;  // its words, on the device
  ScoreScale scale;
  int cut_items;                             // in how many items the plan cut its work, at most
  int64_t max_items, max_merges, max_slots;  // what every plan of this shape stays within
};

// The planner cuts for one to this many waves of items, a wave being as many as blocks find room for. More waves end
// more evenly, but more pieces have results that are written and read again: with 128 rows, as many bytes as their
// keys.
constexpr int most_waves(int rows) { return rows >= 128 ? 2 : 4; }

// A plan's tiles for a chip of `multiprocessors`. A launch provides for the most waves, whichever the plan has.
inline TileShape cuda_tiles(int64_t query_heads, int64_t kv_heads, int rows, int multiprocessors, int waves = 0) {
  const int heads = heads_of_tile(query_heads / kv_heads, rows);
  const int64_t units = query_heads / heads;
  const int blocks = rows >= 128 ? 2 : (rows >= 64 ? 3 : 4);
  const int64_t items = ((waves ? waves : most_waves(rows)) * int64_t(multiprocessors) * blocks + units - 1) / units;
  // Four tiles, 256 keys: with less, a piece's own result would be as many bytes as its keys.
  return {rows / heads, kKeyTile, int(items), 4};
}

inline ForwardTiling forward_tiling(const AttentionParams& p, int rows, int multiprocessors) {
  const TileShape tiles = cuda_tiles(p.query_heads, p.kv_heads, rows, multiprocessors);
  const int64_t query_tiles = (p.rectangle.num_queries + tiles.queries - 1) / tiles.queries;
  const int64_t key_tiles = (p.rectangle.num_keys + kKeyTile - 1) / kKeyTile;
  // A list of at most min_tiles tiles is not split.
  const bool splits = key_tiles > tiles.min_tiles;
  const int64_t pieces_of_tile = (key_tiles + tiles.min_tiles - 1) / tiles.min_tiles;
  ForwardTiling t = {row_tiling(p, rows)};
  t.plan = p.plan.words();
  t.scale = score_scale(p);
  t.cut_items = tiles.items;
  t.max_items = max_forward_items(query_tiles, tiles);
  t.max_merges = splits ? std::min(query_tiles, max_merges(tiles)) : 0;
  t.max_slots = splits ? std::min(query_tiles * pieces_of_tile, max_slots(tiles)) : 0;
  return t;
}

// Of the pieces' results: their lse, then their out, for each slot, unit and row.
inline int64_t forward_workspace_bytes(const AttentionParams& p, const ForwardTiling& t) {
  return t.max_slots * t.units * t.rows * (int64_t(p.value_dim) + 1) * int64_t(sizeof(float));
}

// The backward's tiles. Six items for each multiprocessor: a split key tile only adds its sums once more. Cut at the
// same query tiles: with equal pieces blocks would wait for turns half of the time on middle-sized trees
// (docs/performance.md).
inline TileShape cuda_backward_tiles(int64_t query_heads, int64_t kv_heads, int head_dim, int multiprocessors) {
  const int heads = heads_of_tile(query_heads / kv_heads, kBackwardRows);
  const int keys = kBackwardConfigurations[find_backward_configuration(head_dim)].keys;
  return {kBackwardRows / heads, keys, int((6 * int64_t(multiprocessors) + kv_heads - 1) / kv_heads), 8, true};
}

// Each item of the plan is run for each KV head, which walks the units of its group.
struct BackwardTiling : RowTiling {
  const int32_t* plan;  // its words, on the device
  ScoreScale scale;
  float score_scale;  // of the gradients of q and k
  int keys;           // of a key tile
  int cut_items;
  int units_of_group;
  int64_t max_items;
  // Of the rows, [Hq, Tq] each: lse in log2, +inf where nothing was seen, and delta.
  float *lse_log2, *delta;
  // Zeros: a ticket for each block that starts; how many items have added to each key tile of each KV head; how many
  // key tiles to each query tile of each unit.
  int *ticket, *key_turns, *query_turns;
};

inline int64_t backward_row_floats(const AttentionParams& p) { return 2 * p.rectangle.num_queries * p.query_heads; }

inline int64_t backward_counters(const AttentionParams& p, const BackwardTiling& t) {
  const int64_t key_tiles = (p.rectangle.num_keys + t.keys - 1) / t.keys;
  const int64_t query_tiles = (p.rectangle.num_queries + t.tokens - 1) / t.tokens;
  return 1 + key_tiles * p.kv_heads + query_tiles * t.units;
}

// Without its memory.
inline BackwardTiling backward_tiling(const AttentionParams& p, int multiprocessors) {
  const int head_dim = std::max(p.head_dim, p.value_dim);
  const TileShape tiles = cuda_backward_tiles(p.query_heads, p.kv_heads, head_dim, multiprocessors);
  BackwardTiling t = {row_tiling(p, kBackwardRows)};
  t.plan = p.plan.words();
  t.scale = score_scale(p);
  t.score_scale = float(p.scale);
  t.keys = tiles.keys;
  t.cut_items = tiles.items;
  t.units_of_group = t.units / p.kv_heads;
  t.max_items = max_backward_items((p.rectangle.num_keys + tiles.keys - 1) / tiles.keys, tiles);
  return t;
}

// `floats` has backward_row_floats, `counters` backward_counters, all zero.
inline void give_memory(BackwardTiling& t, const AttentionParams& p, float* floats, int* counters) {
  t.lse_log2 = floats;
  t.delta = floats + p.rectangle.num_queries * p.query_heads;
  t.ticket = counters;
  t.key_turns = counters + 1;
  t.query_turns = t.key_turns + (p.rectangle.num_keys + t.keys - 1) / t.keys * p.kv_heads;
}

}  // namespace regrow
