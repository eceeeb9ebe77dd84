#pragma once

#include <vector>

#include "tree/plan.h"
#include "tree/tiles.h"

namespace regrow {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Lists of runs: one of key tiles for each query tile, say, end to end.
class RunLists {
 public:
  void start_list() { list_start_.push_back(int32_t(runs_.size())); }
  // Adjacent runs of one class become one.
  void append(int64_t begin, int64_t end, TileClass c);

  const std::vector<TileRun>& runs() const { return runs_; }
  int64_t num_lists() const { return int64_t(list_start_.size()); }
  // The runs of a list are [begin(list), end(list)).
  int32_t begin(int64_t list) const { return list_start_[list]; }
  int32_t end(int64_t list) const { return list + 1 < num_lists() ? list_start_[list + 1] : int32_t(runs_.size()); }

 private:
  std::vector<TileRun> runs_;
  std::vector<int32_t> list_start_;
};

// The same lists, each cut into pieces of about equal tiles.
struct Pieces {
  std::vector<TileRun> runs;
  std::vector<int32_t> list_start;   // [lists + 1] into runs
  std::vector<int32_t> piece_start;  // into runs, pieces in order
  std::vector<int32_t> piece_list;   // the list of each piece

  int64_t num_pieces() const { return int64_t(piece_list.size()); }
  bool first_of_list(int64_t p) const { return p == 0 || piece_list[p - 1] != piece_list[p]; }
  bool last_of_list(int64_t p) const { return p + 1 == num_pieces() || piece_list[p + 1] != piece_list[p]; }
};

// At most max_backward_items(lists, tiles) pieces, cut where tile numbers pass a multiple of the share.
Pieces cut_at_multiples(const RunLists& lists, const TileShape& tiles);

// Pieces are cut where a list has more than its share of all tiles; threads do not matter.
Pieces cut_into_shares(const RunLists& lists, const TileShape& tiles);

// Of runs [begin, end) of one list.
int64_t tiles_in(const std::vector<TileRun>& runs, int64_t begin, int64_t end);

}  // namespace regrow
