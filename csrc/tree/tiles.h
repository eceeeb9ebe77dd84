#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "tree/rectangle.h"

namespace regrow {

// Axis positions and depths of some queries, or of several tiles of them.
struct QuerySummary {
  int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
  int64_t min_depth = std::numeric_limits<int64_t>::max(), max_depth = -1;

  void add(const QuerySummary& other) {
    first = std::min(first, other.first);
    last = std::max(last, other.last);
    min_depth = std::min(min_depth, other.min_depth);
    max_depth = std::max(max_depth, other.max_depth);
  }
};

// The same for keys, with the ends of their subtrees.
struct KeySummary {
  int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
  int64_t min_end = std::numeric_limits<int64_t>::max(), max_end = -1;
  int64_t min_depth = std::numeric_limits<int64_t>::max(), max_depth = -1;

  void add(const KeySummary& other) {
    first = std::min(first, other.first);
    last = std::max(last, other.last);
    min_end = std::min(min_end, other.min_end);
    max_end = std::max(max_end, other.max_end);
    min_depth = std::min(min_depth, other.min_depth);
    max_depth = std::max(max_depth, other.max_depth);
  }
};

enum class TileClass { kEmpty, kFull, kPartial };

// Empty and full are proofs and hold for every tile inside the two summaries; partial is not.
inline TileClass classify(const QuerySummary& queries, const KeySummary& keys, int64_t window) {
  const bool empty = keys.first > queries.last || keys.max_end <= queries.first ||
                     (window && queries.min_depth - keys.max_depth >= window);
  if (empty) return TileClass::kEmpty;
  const bool full = keys.last <= queries.first && keys.min_end > queries.last &&
                    (!window || queries.max_depth - keys.min_depth < window);
  return full ? TileClass::kFull : TileClass::kPartial;
}

inline QuerySummary summarize_queries(const Rectangle& r, int64_t begin, int64_t end) {
  QuerySummary s;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = r.query_position(i), depth = r.position_ids[position];
    s.add({position, position, depth, depth});
  }
  return s;
}

inline KeySummary summarize_keys(const Rectangle& r, int64_t begin, int64_t end) {
  KeySummary s;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t position = r.key_start + j, depth = r.position_ids[position];
    s.add({position, position, r.subtree_end[position], r.subtree_end[position], depth, depth});
  }
  return s;
}

// A binary tree of summaries over tiles: finds all tiles of a class without visiting each.
template <class Summary>
class SummaryTree {
 public:
  explicit SummaryTree(std::vector<Summary> leaves) {
    levels_.push_back(std::move(leaves));
    while (levels_.back().size() > 1) {
      const std::vector<Summary>& below = levels_.back();
      std::vector<Summary> level((below.size() + 1) / 2);
      for (size_t i = 0; i < below.size(); ++i) level[i / 2].add(below[i]);
      levels_.push_back(std::move(level));
    }
  }

  const Summary& leaf(int64_t i) const { return levels_[0][i]; }
  int64_t num_leaves() const { return int64_t(levels_[0].size()); }

  // Calls emit(begin, end, class) in ascending order for the leaves that are not empty. classify_node must hold for
  // all leaves below a node unless it says partial.
  template <class Classify, class Emit>
  void for_each_run(const Classify& classify_node, const Emit& emit) const {
    if (num_leaves()) visit(levels_.size() - 1, 0, classify_node, emit);
  }

 private:
  template <class Classify, class Emit>
  void visit(size_t level, int64_t node, const Classify& classify_node, const Emit& emit) const {
    const TileClass c = classify_node(levels_[level][node]);
    if (c == TileClass::kEmpty) return;
    if (c == TileClass::kFull || level == 0) {
      return emit(node << level, std::min((node + 1) << level, num_leaves()), c);
    }
    visit(level - 1, 2 * node, classify_node, emit);
    if (2 * node + 1 < int64_t(levels_[level - 1].size())) visit(level - 1, 2 * node + 1, classify_node, emit);
  }

  std::vector<std::vector<Summary>> levels_;
};

}  // namespace regrow
