#pragma once

#include <cstdint>

namespace regrow {

// Some queries of an axis against some keys of it. Query i stands at query_index[i], or query_start + i without one;
// key j at key_start + j. Query position q sees key position k iff k <= q < subtree_end[k] and, with a window,
// position_ids[q] - position_ids[k] < window.
struct Rectangle {
  const int32_t* subtree_end = nullptr;   // [num_tokens]
  const int64_t* position_ids = nullptr;  // [num_tokens] depth on the path
  int64_t num_tokens = 0;                 // of the whole axis
  const int64_t* query_index = nullptr;   // [num_queries] ascending, or null
  int64_t query_start = 0;
  int64_t num_queries = 0;
  int64_t key_start = 0;
  int64_t num_keys = 0;
  int64_t window = 0;  // 0: none

  int64_t query_position(int64_t query) const { return query_index ? query_index[query] : query_start + query; }
};

}  // namespace regrow
