#include "tree/plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "platform/check.h"
#include "tree/plan_checksums.h"
#include "tree/plan_pieces.h"
#include "tree/seen_keys.h"
#include "tree/tiles.h"

namespace regrow {
namespace {

void check_rectangle(const Rectangle& r) {
  CHECK(r.num_tokens <= std::numeric_limits<int32_t>::max(), "a tree holds at most 2^31 - 1 tokens, got ", r.num_tokens,
        ": split it into several");
  const auto fits = [&](int64_t start, int64_t count) {  // start + count may not fit an int64
    return start >= 0 && count >= 0 && start <= r.num_tokens && count <= r.num_tokens - start;
  };
  CHECK(fits(r.key_start, r.num_keys), r.num_keys, " keys from ", r.key_start, " leave the axis of ", r.num_tokens,
        " tokens");
  CHECK(r.query_index || fits(r.query_start, r.num_queries), r.num_queries, " queries from ", r.query_start,
        " leave the axis of ", r.num_tokens, " tokens");
  for (int64_t i = 0; r.query_index && i < r.num_queries; ++i) {
    CHECK(r.query_index[i] >= 0 && r.query_index[i] < r.num_tokens, "query_index[", i, "] is ", r.query_index[i],
          ", the axis has ", r.num_tokens, " tokens");
    CHECK(i == 0 || r.query_index[i] >= r.query_index[i - 1], "query_index must be sorted, but entry ", i, " is ",
          r.query_index[i], " after ", r.query_index[i - 1]);
  }
}

// One summary for each tile of `tile` rows.
template <class Summary, class Summarize>
SummaryTree<Summary> summarize_tiles(const Rectangle& r, int64_t rows, int64_t tile, const Summarize& summarize) {
  std::vector<Summary> leaves;
  for (int64_t begin = 0; begin < rows; begin += tile)
    leaves.push_back(summarize(r, begin, std::min(begin + tile, rows)));
  return SummaryTree<Summary>(std::move(leaves));
}

// For each of `num_lists` tiles, the tiles of the other side that are not empty against it.
template <class Tree, class Classify>
RunLists lists_of(int64_t num_lists, const Tree& others, const Classify& classify_against) {
  RunLists lists;
  for (int64_t tile = 0; tile < num_lists; ++tile) {
    lists.start_list();
    others.for_each_run([&](const auto& node) { return classify_against(tile, node); },
                        [&](int64_t begin, int64_t end, TileClass c) { lists.append(begin, end, c); });
  }
  return lists;
}

// The tiles of a rectangle, summed up, and who meets whom.
struct Summaries {
  Summaries(const Rectangle& r, const TileShape& tiles)
      : queries(summarize_tiles<QuerySummary>(r, r.num_queries, tiles.queries, summarize_queries)),
        keys(summarize_tiles<KeySummary>(r, r.num_keys, tiles.keys, summarize_keys)) {}

  RunLists forward_lists(int64_t window) const {
    return lists_of(queries.num_leaves(), keys,
                    [&](int64_t tile, const KeySummary& node) { return classify(queries.leaf(tile), node, window); });
  }
  RunLists backward_lists(int64_t window) const {
    return lists_of(keys.num_leaves(), queries,
                    [&](int64_t tile, const QuerySummary& node) { return classify(node, keys.leaf(tile), window); });
  }

  SummaryTree<QuerySummary> queries;
  SummaryTree<KeySummary> keys;
};

struct ForwardWork {
  std::vector<ForwardItem> items;  // longest first
  std::vector<ForwardMerge> merges;
  int32_t num_slots = 0;
};

ForwardWork forward_work(const Pieces& pieces) {
  ForwardWork work;
  for (int64_t p = 0; p < pieces.num_pieces(); ++p) {
    const int32_t tile = pieces.piece_list[p];
    int32_t slot = -1;
    if (!pieces.first_of_list(p) || !pieces.last_of_list(p)) {
      slot = work.num_slots++;
      if (pieces.first_of_list(p)) work.merges.push_back({tile, slot, slot});
      work.merges.back().slot_end = slot + 1;
    }
    work.items.push_back({tile, pieces.piece_start[p], pieces.piece_start[p + 1], slot});
  }
  std::stable_sort(work.items.begin(), work.items.end(), [&](const ForwardItem& a, const ForwardItem& b) {
    return tiles_in(pieces.runs, a.run_begin, a.run_end) > tiles_in(pieces.runs, b.run_begin, b.run_end);
  });
  return work;
}

// Ascending by key tile: a query tile's gradient is summed in that order, and waiting for one's turn can't deadlock
// when items are claimed in this order. Near a root, where key tiles have most queries, it is longest first as well.
std::vector<BackwardItem> backward_items(const Pieces& pieces) {
  std::vector<BackwardItem> items;
  for (int64_t p = 0; p < pieces.num_pieces(); ++p) {
    if (pieces.piece_start[p] == pieces.piece_start[p + 1]) continue;
    const int32_t tile = pieces.piece_list[p];
    const int32_t turn = !items.empty() && items.back().key_tile == tile ? items.back().turn + 1 : 0;
    items.push_back({tile, pieces.piece_start[p], pieces.piece_start[p + 1], turn});
  }
  return items;
}

// What a call is compared with: the rectangle and the tiles.
PlanHeader header_of(const Rectangle& r, TileShape tiles) {
  PlanHeader h = {};
  h.magic = kPlanMagic;
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
  h.items = tiles.items;
  h.min_tiles = tiles.min_tiles;
  h.num_query_tiles = int32_t(ceil_div(r.num_queries, tiles.queries));
  h.num_key_tiles = int32_t(ceil_div(r.num_keys, tiles.keys));
  return h;
}

class Words {
 public:
  explicit Words(size_t header_words) : words_(header_words) {}

  template <class T>
  int32_t append(const std::vector<T>& items) {
    static_assert(sizeof(T) % 4 == 0);
    words_.resize((words_.size() + 3) / 4 * 4);  // device code reads 16 bytes at a time
    const size_t offset = words_.size(), count = items.size() * (sizeof(T) / 4);
    CHECK(offset + count <= size_t(std::numeric_limits<int32_t>::max()), "the plan exceeds 2^31 words: split the tree");
    words_.resize(offset + count);
    if (count) std::memcpy(words_.data() + offset, items.data(), count * 4);
    return int32_t(offset);
  }
  std::vector<int32_t> finish(PlanHeader header) {
    header.num_words = int32_t(words_.size());
    std::memcpy(words_.data(), &header, sizeof header);
    header.words_checksum = checksum_of_words(words_.data(), header.num_words);
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
  // 64 items: some 16 threads share them evenly whatever the tree's shape.
  return {queries, 128, 64, 16};
}

void append_backward_plan(std::vector<int32_t>& words, const std::vector<int32_t>& backward) {
  words.resize((words.size() + 3) / 4 * 4);  // device code reads 16 bytes at a time
  PlanHeader h;
  std::memcpy(&h, words.data(), sizeof h);
  h.backward_plan = int32_t(words.size());
  words.insert(words.end(), backward.begin(), backward.end());
  h.num_words = int32_t(words.size());
  std::memcpy(words.data(), &h, sizeof h);
  h.words_checksum = checksum_of_words(words.data(), h.num_words);
  std::memcpy(words.data(), &h, sizeof h);
}

std::vector<int64_t> forward_tiles(const Rectangle& r, TileShape tiles) {
  check_rectangle(r);
  const RunLists lists = Summaries(r, tiles).forward_lists(r.window);
  std::vector<int64_t> counts;
  for (int64_t list = 0; list < lists.num_lists(); ++list)
    counts.push_back(tiles_in(lists.runs(), lists.begin(list), lists.end(list)));
  return counts;
}

std::vector<int32_t> build_plan(const Rectangle& r, TileShape tiles) {
  check_rectangle(r);
  const Summaries s(r, tiles);
  const Pieces forward = cut_into_shares(s.forward_lists(r.window), tiles);
  const RunLists key_lists = s.backward_lists(r.window);
  const Pieces backward = tiles.common_cuts ? cut_at_multiples(key_lists, tiles) : cut_into_shares(key_lists, tiles);
  const ForwardWork work = forward_work(forward);
  const std::vector<BackwardItem> items = backward_items(backward);
  const SeenKeys seen = seen_keys(r, ceil_div(r.num_keys, tiles.keys) * tiles.keys);

  PlanHeader h = header_of(r, tiles);
  h.num_forward_items = int32_t(work.items.size());
  h.num_merges = int32_t(work.merges.size());
  h.num_slots = work.num_slots;
  h.num_backward_items = int32_t(items.size());
  h.num_unseen = int32_t(seen.num_unseen);
  Words words(sizeof(PlanHeader) / 4);
  h.forward_items = words.append(work.items);
  h.forward_runs = words.append(forward.runs);
  h.forward_start = words.append(forward.list_start);
  h.merges = words.append(work.merges);
  h.backward_items = words.append(items);
  h.backward_runs = words.append(backward.runs);
  h.seen_keys = words.append(seen.bits);
  return words.finish(h);
}

}  // namespace regrow
