#pragma once

#include <cmath>
#include <initializer_list>

#include "kernels/attention_params.h"
#include "platform/memory.h"
#include "tile/copy.h"

namespace regrow {

// One warp merges one (query, head): a softmax over the partials' lse, in the order of the partials.
struct LseMergeConfig {
  static constexpr int kThreads = 128;
  static constexpr int kMaxRegisters = 64;  // 8 blocks per SM: the kernel waits for memory
};

// exp(lse - total), 0 where neither has seen a key; a NaN stays.
template <class T>
DEVICE T merge_weight(T lse, T total) {
  return lse == -T(INFINITY) ? T(0) : std::exp(lse - total);
}

// kValues of 16 bytes together where rows are multiples of 16 bytes, else 1.
template <class T, int kValues>
GLOBAL void LAUNCH_BOUNDS(LseMergeConfig::kThreads) lse_merge(const LseMergeParams p) {
  const int64_t row = block_index() * (LseMergeConfig::kThreads / kWarpLanes) + warp_index();
  if (row >= p.num_queries * p.heads) return;
  const int64_t query = row / p.heads, head = row % p.heads;
  const int64_t lse_step = p.heads * p.num_queries, lse_at = head * p.num_queries + query;
  const T* lses = static_cast<const T*>(p.lses) + lse_at;
  const T sink = p.sinks ? load_global(static_cast<const T*>(p.sinks) + head) : -T(INFINITY);

  // Every lane reads all lse: broadcasts, and no lane waits for another.
  T top = sink;
  for (int64_t i = 0; i < p.num_partials; ++i) {
    const T lse = load_global(lses + i * lse_step);
    if (!(lse <= top) && top == top) top = lse;  // a NaN stays
  }
  T total = top;
  if (!std::isinf(top)) {
    T sum = merge_weight(sink, top);
    for (int64_t i = 0; i < p.num_partials; ++i) sum += merge_weight(load_global(lses + i * lse_step), top);
    total = top + std::log(sum);
  }
  if (lane_index() == 0) store_global(static_cast<T*>(p.lse) + lse_at, total);

  const int64_t out_step = p.num_queries * p.heads * p.value_dim;
  for (int column = lane_index() * kValues; column < p.value_dim; column += kWarpLanes * kValues) {
    const int64_t at = row * p.value_dim + column;
    Values<T, kValues> out = {};
    for (int64_t i = 0; i < p.num_partials; ++i) {
      const T lse = load_global(lses + i * lse_step);
      if (lse == -T(INFINITY)) continue;  // its out may be anything
      const T weight = merge_weight(lse, total);
      const auto from = load_values<T, kValues>(static_cast<const T*>(p.outs) + i * out_step + at);
      UNROLL
      for (int v = 0; v < kValues; ++v) out[v] += weight * from[v];
    }
    store_values(static_cast<T*>(p.out) + at, out);
  }
}

// Whether rows of the merged tensors can be read and written 16 bytes at a time.
inline bool rows_of_16_bytes(const LseMergeParams& p, std::initializer_list<const void*> tensors) {
  for (const void* tensor : tensors)
    if (reinterpret_cast<intptr_t>(tensor) % 16) return false;
  return p.value_dim % (p.dtype == DType::kFloat64 ? 2 : 4) == 0;
}

// launch(shape, kernel, p) with the instantiation that p asks for.
template <class Launch>
void dispatch_lse_merge(const LseMergeParams& p, const Launch& launch) {
  constexpr int kRowsPerBlock = LseMergeConfig::kThreads / kWarpLanes;
  const int64_t rows = p.num_queries * p.heads;
  if (rows == 0) return;
  const LaunchShape shape = {.blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock, .threads = LseMergeConfig::kThreads};
  const bool together = rows_of_16_bytes(p, {p.outs, p.out});
  if (p.dtype == DType::kFloat64)
    return together ? launch(shape, &lse_merge<double, 2>, p) : launch(shape, &lse_merge<double, 1>, p);
  return together ? launch(shape, &lse_merge<float, 4>, p) : launch(shape, &lse_merge<float, 1>, p);
}

}  // namespace regrow
