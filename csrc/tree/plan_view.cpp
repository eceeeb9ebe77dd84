// Reading a plan, and telling whether it fits a call.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "platform/check.h"
#include "tree/plan.h"
#include "tree/plan_checksums.h"

namespace regrow {
namespace {

// Order matters and so does each value: enough to tell trees apart by accident, not by malice.
template <class T>
int32_t checksum(const T* values, int64_t count) {
  uint64_t lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] = lanes[lane] * 0x9e3779b1u + uint64_t(values[i + lane]);
  for (; i < count; ++i) lanes[0] = lanes[0] * 0x9e3779b1u + uint64_t(values[i]);
  uint64_t sum = uint64_t(count);
  for (const uint64_t lane : lanes) sum = (sum ^ lane ^ lane >> 29) * 0xbf58476d1ce4e5b9u;
  return int32_t(sum >> 33);
}

}  // namespace

int32_t checksum_of_tree(const Rectangle& r) {
  const int32_t ends = checksum(r.subtree_end, r.num_tokens);
  return r.window ? ends ^ checksum(r.position_ids, r.num_tokens) : ends;
}

int32_t checksum_of_words(const int32_t* plan, int64_t num_words) {
  constexpr int64_t kAfter = offsetof(PlanHeader, words_checksum) / 4 + 1;
  return checksum(plan + kAfter, num_words - kAfter);
}

int32_t checksum_of_queries(const Rectangle& r) { return r.query_index ? checksum(r.query_index, r.num_queries) : 0; }

int32_t PlanView::ordinal_of_key_tile(int32_t query_tile, int32_t key_tile) const {
  const int32_t* start = at<int32_t>(header().forward_start) + query_tile;
  const TileRun* run = std::upper_bound(forward_runs() + start[0], forward_runs() + start[1], key_tile,
                                        [](int32_t tile, const TileRun& r) { return tile < r.end; });
  return run->ordinal + key_tile - run->begin;
}

std::string PlanView::mismatch(int64_t num_words, const Rectangle& r, TileShape tiles) const {
  const PlanHeader& h = header();
  if (num_words < int64_t(sizeof(PlanHeader) / 4) || h.magic != kPlanMagic || h.num_words != num_words)
    return "it is not a plan made by regrow.plan for this device";
  if (h.words_checksum != checksum_of_words(words_, num_words)) return "its words have changed since it was made";
  const auto differs = [](const char* what, int64_t planned, int64_t called) {
    return planned == called ? std::string()
                             : message("it was made for ", what, " ", planned, ", the call has ", called);
  };
  for (const std::string& text :
       {differs("an axis of", h.num_tokens, r.num_tokens), differs("num_queries", h.num_queries, r.num_queries),
        differs("num_keys", h.num_keys, r.num_keys), differs("indexed queries", h.indexed, r.query_index != nullptr),
        differs("query_start", h.query_start, r.query_index ? 0 : r.query_start),
        differs("key_start", h.key_start, r.key_start),
        differs("window", h.window, std::min<int64_t>(r.window, std::numeric_limits<int32_t>::max())),
        differs("query tiles of", h.query_tile, tiles.queries), differs("key tiles of", h.key_tile, tiles.keys),
        differs("a share in items of", h.items, tiles.items)})
    if (!text.empty()) return text;
  if (h.tree_checksum != checksum_of_tree(r)) return "it was made for another tree";
  if (h.query_checksum != checksum_of_queries(r)) return "it was made for another query_index";
  return "";
}

}  // namespace regrow
