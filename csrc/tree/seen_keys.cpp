#include "tree/seen_keys.h"

#include <algorithm>
#include <limits>

namespace regrow {
namespace {

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

}  // namespace

SeenKeys seen_keys(const Rectangle& r, int64_t num_bits) {
  SeenKeys result = {std::vector<int32_t>(num_bits / 32, -1), 0};
  const auto clear = [&](int64_t j) { result.bits[j / 32] &= ~int32_t(uint32_t(1) << j % 32); };
  for (int64_t j = r.num_keys; j < num_bits; ++j) clear(j);
  const bool every_key_is_a_query =
      !r.query_index && r.query_start <= r.key_start && r.query_start + r.num_queries >= r.key_start + r.num_keys;
  if (every_key_is_a_query) return result;
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
    clear(j);
    ++result.num_unseen;
  }
  return result;
}

}  // namespace regrow
