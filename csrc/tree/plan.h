#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tree/rectangle.h"

namespace regrow {

// How a device cuts a rectangle. A query tile holds `queries` tokens times heads of one KV group. In either direction
// the work is cut into about `items` items, but not below `min_tiles` tiles an item, where a cut costs more than it
// brings.
struct TileShape {
  int queries;
  int keys;
  int items;
  int min_tiles;
  // Whether the backward cuts all key tiles at the same query tiles, multiples of the share. Else each is cut into
  // equal pieces, and where blocks take turns, one that starts in the middle of its key tile's queries waits for
  // another's end.
  bool common_cuts = false;
};

// What holds for every plan of a shape, so that a launch need not read the plan: at most this many forward items, and
// slots of pieces. With share = max(min_tiles, total / items), a list of n tiles has ceil(n / share) pieces; it is
// split if n > share, and then has fewer than 2 n / share.
inline int64_t max_forward_items(int64_t num_query_tiles, const TileShape& tiles) {
  return num_query_tiles + tiles.items;
}
// With common cuts a piece that is not its list's first or last has at least half a share.
inline int64_t max_backward_items(int64_t num_key_tiles, const TileShape& tiles) {
  return tiles.common_cuts ? 2 * (num_key_tiles + tiles.items) : num_key_tiles + tiles.items;
}
inline int64_t max_slots(const TileShape& tiles) { return 2 * int64_t(tiles.items); }
inline int64_t max_merges(const TileShape& tiles) { return tiles.items; }

// The CPU kernels' tiles: about 256 rows of queries against 128 keys, so that both stay in a 1 MB L2.
TileShape cpu_tiles(int64_t query_heads, int64_t kv_heads);

// Tiles [begin, end), all full or all partial. `ordinal`: the tiles of the same list before `begin`.
struct alignas(16) TileRun {
  int32_t begin, end;
  int32_t partial;
  int32_t ordinal;
};

// One query tile against key tiles runs [run_begin, run_end): all of its keys, or (slot >= 0) a piece whose result goes
// to a slot and is merged.
struct alignas(16) ForwardItem {
  int32_t query_tile, run_begin, run_end;
  int32_t slot;
};

// The pieces of one query tile, in key order.
struct ForwardMerge {
  int32_t query_tile, slot_begin, slot_end;
};

// One key tile against query tiles runs [run_begin, run_end). `turn` counts the items of the same key tile before it.
struct alignas(16) BackwardItem {
  int32_t key_tile, run_begin, run_end;
  int32_t turn;
};

inline constexpr int32_t kPlanMagic = 0x52475032;

// The first words of a plan. Offsets count words from the start and are multiples of 4.
struct PlanHeader {
  int32_t magic, num_words;
  int32_t words_checksum;  // of all words after this one
  int32_t num_tokens, num_queries, num_keys;
  int32_t query_start, key_start, window, indexed;
  int32_t tree_checksum, query_checksum;
  int32_t query_tile, key_tile, items, min_tiles;
  int32_t num_query_tiles, num_key_tiles;
  int32_t num_forward_items, forward_items;
  int32_t forward_runs;   // TileRun of key tiles, those of one query tile in a row
  int32_t forward_start;  // [num_query_tiles + 1] into forward_runs
  int32_t num_merges, merges, num_slots;
  int32_t num_backward_items, backward_items;
  int32_t backward_runs;  // TileRun of query tiles
  int32_t num_unseen;     // keys that no query sees
  int32_t backward_plan;  // a whole plan with the tiles of the backward; 0: this one has them
  int32_t seen_keys;      // [num_key_tiles * key_tile / 32] key j is bit j % 32 of word j / 32; 0 beyond the last
};

// A plan is one int32 array: what to compute for a rectangle, in which pieces and in which order. This reads it.
class PlanView {
 public:
  PlanView() = default;
  explicit PlanView(const int32_t* words) : words_(words) {}

  const int32_t* words() const { return words_; }
  const PlanHeader& header() const { return *reinterpret_cast<const PlanHeader*>(words_); }
  const ForwardItem* forward_items() const { return at<ForwardItem>(header().forward_items); }
  const TileRun* forward_runs() const { return at<TileRun>(header().forward_runs); }
  const ForwardMerge* merges() const { return at<ForwardMerge>(header().merges); }
  const BackwardItem* backward_items() const { return at<BackwardItem>(header().backward_items); }
  const TileRun* backward_runs() const { return at<TileRun>(header().backward_runs); }
  bool sees_key(int64_t key) const { return at<int32_t>(header().seen_keys)[key / 32] >> key % 32 & 1; }

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

// Puts the plan of the backward behind that of the forward, whose header says where.
void append_backward_plan(std::vector<int32_t>& words, const std::vector<int32_t>& backward);

// How many key tiles each query tile of that plan meets.
std::vector<int64_t> forward_tiles(const Rectangle& rectangle, TileShape tiles);

}  // namespace regrow
