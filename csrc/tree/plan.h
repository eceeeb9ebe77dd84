#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tree/rectangle.h"

namespace regrow {

// How a device cuts a rectangle. A query tile holds `queries` tokens times the heads of one KV group.
struct TileShape {
  int queries;
  int keys;
};

// The CPU kernels' tiles: about 256 rows of queries against 128 keys, so that both stay in a 1 MB L2.
TileShape cpu_tiles(int64_t query_heads, int64_t kv_heads);

// Tiles [begin, end), all full or all partial. `ordinal`: the tiles of the same list before `begin`.
struct TileRun {
  int32_t begin, end;
  int32_t partial;
  int32_t ordinal;
};

// One query tile against key tiles runs [run_begin, run_end): all of its keys, or (slot >= 0) a piece whose result goes
// to a slot and is merged.
struct ForwardItem {
  int32_t query_tile, run_begin, run_end;
  int32_t slot;
};

// The pieces of one query tile, in key order.
struct ForwardMerge {
  int32_t query_tile, slot_begin, slot_end;
};

// One key tile against query tiles runs [run_begin, run_end). `turn` counts the items of the same key tile before it.
struct BackwardItem {
  int32_t key_tile, run_begin, run_end;
  int32_t turn;
};

struct KeyInterval {
  int32_t begin, end;
};

// The first words of a plan. Offsets count words from the start.
struct PlanHeader {
  int32_t magic, num_words;
  int32_t words_checksum;  // of all words after this one
  int32_t num_tokens, num_queries, num_keys;
  int32_t query_start, key_start, window, indexed;
  int32_t tree_checksum, query_checksum;
  int32_t query_tile, key_tile;
  int32_t num_query_tiles, num_key_tiles;
  int32_t num_forward_items, forward_items;
  int32_t forward_runs;   // TileRun of key tiles, those of one query tile in a row
  int32_t forward_start;  // [num_query_tiles + 1] into forward_runs
  int32_t num_merges, merges, num_slots;
  int32_t num_backward_items, backward_items;
  int32_t backward_runs;       // TileRun of query tiles
  int32_t num_unseen, unseen;  // key intervals that no query sees
};

// A plan is one int32 array: what to compute for a rectangle, in which pieces and in which order. This reads it.
class PlanView {
 public:
  PlanView() = default;
  explicit PlanView(const int32_t* words) : words_(words) {}

  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(words_); }
  const ForwardItem* forward_items() const { return at<ForwardItem>(header().forward_items); }
  const TileRun* forward_runs() const { return at<TileRun>(header().forward_runs); }
  const ForwardMerge* merges() const { return at<ForwardMerge>(header().merges); }
  const BackwardItem* backward_items() const { return at<BackwardItem>(header().backward_items); }
  const TileRun* backward_runs() const { return at<TileRun>(header().backward_runs); }
  const KeyInterval* unseen() const { return at<KeyInterval>(header().unseen); }

  // How many key tiles the query tile meets before this one.
  int32_t ordinal_of_key_tile(int32_t query_tile, int32_t key_tile) const;

  // Empty if the plan was made for this rectangle and these tiles, else what differs.
  std::string mismatch(int64_t num_words, const Rectangle& rectangle, TileShape tiles) const;

 private:
  template <class T>
  const T* at(int32_t offset) const {
    return reinterpret_cast<const T*>(words_ + offset);
  }

  const int32_t* words_ = nullptr;
};

// In O(tokens + tiles + runs * log(tiles)). Throws std::invalid_argument for a rectangle that leaves the axis, a
// query_index that is not ascending, or more tokens than an int32 counts.
std::vector<int32_t> build_plan(const Rectangle& rectangle, TileShape tiles);

}  // namespace regrow
