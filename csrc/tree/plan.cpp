#include "tree/plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "platform/check.h"
#include "tree/tiles.h"

namespace regrow {
namespace {

constexpr int32_t kMagic = 0x52475031;

// Work is cut into about this many items, so that some 16 threads share it evenly whatever the tree's shape, and not
// below this many tiles an item, where a cut costs more than it brings. Neither depends on the number of threads.
constexpr int64_t kItems = 64;
constexpr int64_t kMinTilesPerItem = 16;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Depths matter to a window only.
int32_t checksum_of_tree(const Rectangle& r) {
  const int32_t ends = checksum(r.subtree_end, r.num_tokens);
  return r.window ? ends ^ checksum(r.position_ids, r.num_tokens) : ends;
}

int32_t checksum_of_queries(const Rectangle& r) { return r.query_index ? checksum(r.query_index, r.num_queries) : 0; }

void check_rectangle(const Rectangle& r) {
  CHECK(r.num_tokens <= std::numeric_limits<int32_t>::max(), "a tree holds at most 2^31 - 1 tokens, got ", r.num_tokens,
        ": split it into several");
  CHECK(r.key_start >= 0 && r.num_keys >= 0 && r.key_start + r.num_keys <= r.num_tokens, "keys [", r.key_start, ", ",
        r.key_start + r.num_keys, ") leave the axis of ", r.num_tokens, " tokens");
  if (!r.query_index) {
    CHECK(r.query_start >= 0 && r.num_queries >= 0 && r.query_start + r.num_queries <= r.num_tokens, "queries [",
          r.query_start, ", ", r.query_start + r.num_queries, ") leave the axis of ", r.num_tokens, " tokens");
  }
  for (int64_t i = 0; r.query_index && i < r.num_queries; ++i) {
    CHECK(r.query_index[i] >= 0 && r.query_index[i] < r.num_tokens, "query_index[", i, "] is ", r.query_index[i],
          ", the axis has ", r.num_tokens, " tokens");
    CHECK(i == 0 || r.query_index[i] >= r.query_index[i - 1], "query_index must be sorted, but entry ", i, " is ",
          r.query_index[i], " after ", r.query_index[i - 1]);
  }
}

// Adjacent runs of one class become one.
void append_run(std::vector<TileRun>& runs, size_t list_start, int64_t begin, int64_t end, TileClass c) {
  const int32_t partial = c == TileClass::kPartial;
  if (runs.size() > list_start && runs.back().end == begin && runs.back().partial == partial) {
    runs.back().end = int32_t(end);
    return;
  }
  const int32_t ordinal = runs.size() > list_start ? runs.back().ordinal + runs.back().end - runs.back().begin : 0;
  runs.push_back({int32_t(begin), int32_t(end), partial, ordinal});
}

int64_t tiles_in(const std::vector<TileRun>& runs, int64_t begin, int64_t end) {
  return begin == end ? 0 : runs[end - 1].ordinal + runs[end - 1].end - runs[end - 1].begin - runs[begin].ordinal;
}

// Cuts each list of runs into equal pieces of at most `share` tiles. Lists: [starts[i], starts[i + 1]) in `runs`.
struct Pieces {
  std::vector<TileRun> runs;
  std::vector<int32_t> list_start;   // [lists + 1] into runs
  std::vector<int32_t> piece_start;  // into runs, pieces in order
  std::vector<int32_t> piece_list;   // the list of each piece
};

Pieces cut(const std::vector<TileRun>& runs, const std::vector<int32_t>& starts, int64_t share) {
  Pieces out;
  for (size_t list = 0; list + 1 < starts.size(); ++list) {
    out.list_start.push_back(int32_t(out.runs.size()));
    const int64_t tiles = tiles_in(runs, starts[list], starts[list + 1]);
    const int64_t pieces = std::max<int64_t>(1, ceil_div(tiles, share));
    int64_t piece = 0;
    const auto boundary = [&](int64_t p) { return p * tiles / pieces; };
    out.piece_start.push_back(int32_t(out.runs.size()));
    out.piece_list.push_back(int32_t(list));
    for (int32_t i = starts[list]; i < starts[list + 1]; ++i) {
      TileRun rest = runs[i];
      while (rest.begin < rest.end) {
        if (rest.ordinal == boundary(piece + 1)) {
          ++piece;
          out.piece_start.push_back(int32_t(out.runs.size()));
          out.piece_list.push_back(int32_t(list));
        }
        const int32_t count = int32_t(std::min<int64_t>(rest.end - rest.begin, boundary(piece + 1) - rest.ordinal));
        out.runs.push_back({rest.begin, rest.begin + count, rest.partial, rest.ordinal});
        rest.begin += count;
        rest.ordinal += count;
      }
    }
  }
  out.list_start.push_back(int32_t(out.runs.size()));
  out.piece_start.push_back(int32_t(out.runs.size()));
  return out;
}

int64_t share_of(const std::vector<TileRun>& runs) {
  int64_t total = 0;
  for (const TileRun& run : runs) total += run.end - run.begin;
  return std::max(kMinTilesPerItem, ceil_div(total, kItems));
}

// The shallowest of a range of queries, for the window test of keys that are no queries themselves.
class ShallowestQuery {
 public:
  explicit ShallowestQuery(const Rectangle& r) : size_(r.num_queries), depth_(2 * r.num_queries) {
    for (int64_t i = 0; i < size_; ++i) depth_[size_ + i] = r.position_ids[r.query_position(i)];
    for (int64_t i = size_ - 1; i > 0; --i) depth_[i] = std::min(depth_[2 * i], depth_[2 * i + 1]);
  }
  int64_t depth(int64_t begin, int64_t end) const {
    int64_t shallowest = std::numeric_limits<int64_t>::max();
    for (begin += size_, end += size_; begin < end; begin /= 2, end /= 2) {
      if (begin & 1) shallowest = std::min(shallowest, depth_[begin++]);
      if (end & 1) shallowest = std::min(shallowest, depth_[--end]);
    }
    return shallowest;
  }

 private:
  int64_t size_;
  std::vector<int64_t> depth_;
};

// What no query sees may hold anything, NaN too: kernels read it as zero.
std::vector<KeyInterval> unseen_keys(const Rectangle& r) {
  std::vector<KeyInterval> unseen;
  const bool every_key_is_a_query =
      !r.query_index && r.query_start <= r.key_start && r.query_start + r.num_queries >= r.key_start + r.num_keys;
  if (every_key_is_a_query) return unseen;
  const ShallowestQuery shallowest(r.window ? r : Rectangle{});
  const auto first_query_from = [&](int64_t position) {
    if (r.query_index) return std::lower_bound(r.query_index, r.query_index + r.num_queries, position) - r.query_index;
    return std::clamp<int64_t>(position - r.query_start, 0, r.num_queries);
  };
  for (int64_t j = 0; j < r.num_keys; ++j) {
    const int64_t position = r.key_start + j;
    const int64_t begin = first_query_from(position), end = first_query_from(r.subtree_end[position]);
    bool seen = begin < end;
    if (seen && r.window) seen = shallowest.depth(begin, end) - r.position_ids[position] < r.window;
    if (seen) continue;
    if (!unseen.empty() && unseen.back().end == j)
      ++unseen.back().end;
    else
      unseen.push_back({int32_t(j), int32_t(j + 1)});
  }
  return unseen;
}

class Words {
 public:
  explicit Words(size_t header_words) : words_(header_words) {}

  template <class T>
  int32_t append(const std::vector<T>& items) {
    static_assert(sizeof(T) % 4 == 0);
    const size_t offset = words_.size(), count = items.size() * (sizeof(T) / 4);
    CHECK(offset + count <= size_t(std::numeric_limits<int32_t>::max()), "the plan exceeds 2^31 words: split the tree");
    words_.resize(offset + count);
    if (count) std::memcpy(words_.data() + offset, items.data(), count * 4);
    return int32_t(offset);
  }
  std::vector<int32_t> finish(PlanHeader header) {
    header.num_words = int32_t(words_.size());
    std::memcpy(words_.data(), &header, sizeof header);
    return std::move(words_);
  }

 private:
  std::vector<int32_t> words_;
};

}  // namespace

TileShape cpu_tiles(int64_t query_heads, int64_t kv_heads) {
  const int64_t group = kv_heads ? std::max<int64_t>(query_heads / kv_heads, 1) : 1;
  int queries = 64;
  while (queries > 1 && queries * group > 256) queries /= 2;
  return {queries, 128};
}

std::vector<int32_t> build_plan(const Rectangle& r, TileShape tiles) {
  check_rectangle(r);
  const int64_t num_query_tiles = ceil_div(r.num_queries, tiles.queries);
  const int64_t num_key_tiles = ceil_div(r.num_keys, tiles.keys);
  std::vector<QuerySummary> query_leaves;
  for (int64_t t = 0; t < num_query_tiles; ++t)
    query_leaves.push_back(summarize_queries(r, t * tiles.queries, std::min((t + 1) * tiles.queries, r.num_queries)));
  std::vector<KeySummary> key_leaves;
  for (int64_t t = 0; t < num_key_tiles; ++t)
    key_leaves.push_back(summarize_keys(r, t * tiles.keys, std::min((t + 1) * tiles.keys, r.num_keys)));
  const SummaryTree<QuerySummary> queries(std::move(query_leaves));
  const SummaryTree<KeySummary> keys(std::move(key_leaves));

  std::vector<TileRun> runs;
  std::vector<int32_t> starts;
  const auto append = [&](int64_t begin, int64_t end, TileClass c) {
    append_run(runs, size_t(starts.back()), begin, end, c);
  };
  for (int64_t t = 0; t < num_query_tiles; ++t) {
    starts.push_back(int32_t(runs.size()));
    keys.for_each_run([&](const KeySummary& node) { return classify(queries.leaf(t), node, r.window); }, append);
  }
  starts.push_back(int32_t(runs.size()));
  const Pieces forward = cut(runs, starts, share_of(runs));

  runs.clear();
  starts.clear();
  for (int64_t t = 0; t < num_key_tiles; ++t) {
    starts.push_back(int32_t(runs.size()));
    queries.for_each_run([&](const QuerySummary& node) { return classify(node, keys.leaf(t), r.window); }, append);
  }
  starts.push_back(int32_t(runs.size()));
  const Pieces backward = cut(runs, starts, share_of(runs));

  PlanHeader h = {};
  std::vector<ForwardItem> forward_items;
  std::vector<ForwardMerge> merges;
  for (size_t p = 0; p < forward.piece_list.size(); ++p) {
    const int32_t tile = forward.piece_list[p];
    const bool first = p == 0 || forward.piece_list[p - 1] != tile;
    const bool last = p + 1 == forward.piece_list.size() || forward.piece_list[p + 1] != tile;
    int32_t slot = -1;
    if (!first || !last) {
      slot = h.num_slots++;
      if (first) merges.push_back({tile, slot, slot});
      merges.back().slot_end = slot + 1;
    }
    forward_items.push_back({tile, forward.piece_start[p], forward.piece_start[p + 1], slot});
  }
  std::stable_sort(forward_items.begin(), forward_items.end(), [&](const ForwardItem& a, const ForwardItem& b) {
    return tiles_in(forward.runs, a.run_begin, a.run_end) > tiles_in(forward.runs, b.run_begin, b.run_end);
  });

  // Ascending by key tile: a query tile's gradient is summed in that order, and waiting for one's turn can't deadlock
  // when items are claimed in this order. Near a root, where key tiles have most queries, it is longest first as well.
  std::vector<BackwardItem> backward_items;
  for (size_t p = 0; p < backward.piece_list.size(); ++p) {
    if (backward.piece_start[p] == backward.piece_start[p + 1]) continue;
    const int32_t tile = backward.piece_list[p];
    const int32_t turn =
        !backward_items.empty() && backward_items.back().key_tile == tile ? backward_items.back().turn + 1 : 0;
    backward_items.push_back({tile, backward.piece_start[p], backward.piece_start[p + 1], turn});
  }

  const std::vector<KeyInterval> unseen = unseen_keys(r);
  h.magic = kMagic;
  h.num_tokens = int32_t(r.num_tokens);
  h.num_queries = int32_t(r.num_queries);
  h.num_keys = int32_t(r.num_keys);
  h.query_start = r.query_index ? 0 : int32_t(r.query_start);
  h.key_start = int32_t(r.key_start);
  h.window = int32_t(std::min<int64_t>(r.window, std::numeric_limits<int32_t>::max()));
  h.indexed = r.query_index != nullptr;
  h.tree_checksum = checksum_of_tree(r);
  h.query_checksum = checksum_of_queries(r);
  h.query_tile = tiles.queries;
  h.key_tile = tiles.keys;
  h.num_query_tiles = int32_t(num_query_tiles);
  h.num_key_tiles = int32_t(num_key_tiles);
  h.num_forward_items = int32_t(forward_items.size());
  h.num_merges = int32_t(merges.size());
  h.num_backward_items = int32_t(backward_items.size());
  h.num_unseen = int32_t(unseen.size());
  Words words(sizeof(PlanHeader) / 4);
  h.forward_items = words.append(forward_items);
  h.forward_runs = words.append(forward.runs);
  h.forward_start = words.append(forward.list_start);
  h.merges = words.append(merges);
  h.backward_items = words.append(backward_items);
  h.backward_runs = words.append(backward.runs);
  h.unseen = words.append(unseen);
  return words.finish(h);
}

int32_t PlanView::ordinal_of_key_tile(int32_t query_tile, int32_t key_tile) const {
  const int32_t* start = at<int32_t>(header().forward_start) + query_tile;
  const TileRun* run = std::upper_bound(forward_runs() + start[0], forward_runs() + start[1], key_tile,
                                        [](int32_t tile, const TileRun& r) { return tile < r.end; });
  return run->ordinal + key_tile - run->begin;
}

std::string PlanView::mismatch(int64_t num_words, const Rectangle& r, TileShape tiles) const {
  const PlanHeader& h = header();
  if (num_words < int64_t(sizeof(PlanHeader) / 4) || h.magic != kMagic || h.num_words != num_words)
    return "it is not a plan made by regrow.plan for this device";
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
        differs("query tiles of", h.query_tile, tiles.queries), differs("key tiles of", h.key_tile, tiles.keys)})
    if (!text.empty()) return text;
  if (h.tree_checksum != checksum_of_tree(r)) return "it was made for another tree";
  if (h.query_checksum != checksum_of_queries(r)) return "it was made for another query_index";
  return "";
}

}  // namespace regrow
