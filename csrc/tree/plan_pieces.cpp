#include "tree/plan_pieces.h"

#include <algorithm>

namespace regrow {
namespace {

int64_t share_of(const std::vector<TileRun>& runs, const TileShape& tiles) {
  int64_t total = 0;
  for (const TileRun& run : runs) total += run.end - run.begin;
  return std::max<int64_t>(tiles.min_tiles, ceil_div(total, tiles.items));
}

// Appends list `list`, cut into equal pieces of at most `share` tiles.
void cut_list(Pieces& out, const RunLists& lists, int64_t list, int64_t share) {
  const int64_t tiles = tiles_in(lists.runs(), lists.begin(list), lists.end(list));
  const int64_t pieces = std::max<int64_t>(1, ceil_div(tiles, share));
  const auto boundary = [&](int64_t p) { return p * tiles / pieces; };
  const auto start_piece = [&] {
    out.piece_start.push_back(int32_t(out.runs.size()));
    out.piece_list.push_back(int32_t(list));
  };
  int64_t piece = 0;
  out.list_start.push_back(int32_t(out.runs.size()));
  start_piece();
  for (int32_t i = lists.begin(list); i < lists.end(list); ++i) {
    TileRun rest = lists.runs()[i];
    while (rest.begin < rest.end) {
      if (rest.ordinal == boundary(piece + 1)) {
        ++piece;
        start_piece();
      }
      const int32_t count = int32_t(std::min<int64_t>(rest.end - rest.begin, boundary(piece + 1) - rest.ordinal));
      out.runs.push_back({rest.begin, rest.begin + count, rest.partial, rest.ordinal});
      rest.begin += count;
      rest.ordinal += count;
    }
  }
}

void cut_list_at_multiples(Pieces& out, const RunLists& lists, int64_t list, int64_t share) {
  int64_t in_piece = 0;
  bool is_first = true;
  const auto start_piece = [&] {
    out.piece_start.push_back(int32_t(out.runs.size()));
    out.piece_list.push_back(int32_t(list));
    in_piece = 0;
  };
  out.list_start.push_back(int32_t(out.runs.size()));
  start_piece();
  for (int32_t i = lists.begin(list); i < lists.end(list); ++i) {
    TileRun rest = lists.runs()[i];
    while (rest.begin < rest.end) {
      const int64_t block = rest.begin / share;
      const bool passes = in_piece && (out.runs.back().end - 1) / share != block;
      // A list with holes would have many short pieces.
      if (passes && (is_first || 2 * in_piece >= share)) {
        is_first = false;
        start_piece();
      }
      const int32_t end = int32_t(std::min<int64_t>(rest.end, (block + 1) * share)), count = end - rest.begin;
      if (in_piece && out.runs.back().end == rest.begin && out.runs.back().partial == rest.partial)
        out.runs.back().end = end;
      else
        out.runs.push_back({rest.begin, end, rest.partial, rest.ordinal});
      in_piece += count;
      rest.begin += count;
      rest.ordinal += count;
    }
  }
}

}  // namespace

void RunLists::append(int64_t begin, int64_t end, TileClass c) {
  const int32_t partial = c == TileClass::kPartial;
  const bool has_run = int32_t(runs_.size()) > list_start_.back();
  if (has_run && runs_.back().end == begin && runs_.back().partial == partial) {
    runs_.back().end = int32_t(end);
    return;
  }
  const int32_t ordinal = has_run ? runs_.back().ordinal + runs_.back().end - runs_.back().begin : 0;
  runs_.push_back({int32_t(begin), int32_t(end), partial, ordinal});
}

int64_t tiles_in(const std::vector<TileRun>& runs, int64_t begin, int64_t end) {
  return begin == end ? 0 : runs[end - 1].ordinal + runs[end - 1].end - runs[end - 1].begin - runs[begin].ordinal;
}

Pieces cut_at_multiples(const RunLists& lists, const TileShape& tiles) {
  const int64_t share = share_of(lists.runs(), tiles);
  Pieces out;
  for (int64_t list = 0; list < lists.num_lists(); ++list) cut_list_at_multiples(out, lists, list, share);
  out.list_start.push_back(int32_t(out.runs.size()));
  out.piece_start.push_back(int32_t(out.runs.size()));
  return out;
}

Pieces cut_into_shares(const RunLists& lists, const TileShape& tiles) {
  const int64_t share = share_of(lists.runs(), tiles);
  Pieces out;
  for (int64_t list = 0; list < lists.num_lists(); ++list) cut_list(out, lists, list, share);
  out.list_start.push_back(int32_t(out.runs.size()));
  out.piece_start.push_back(int32_t(out.runs.size()));
  return out;
}

}  // namespace regrow
