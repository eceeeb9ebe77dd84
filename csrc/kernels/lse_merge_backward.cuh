#pragma once

#include "kernels/lse_merge.cuh"
#include "tile/reduce.h"

namespace regrow {

// One warp differentiates the merge of one (query, head): dout_p = w_p dout, dlse_p = w_p (dlse + dout . (out_p - out))
// with w_p = exp(lse_p - lse). The sink is a part with out 0: its terms go to p.sink_terms. Loops over columns have one
// turn up to 128 of them: unrolled, they would only take registers.
template <class T, int kValues>
GLOBAL void LAUNCH_BOUNDS(LseMergeConfig::kThreads) lse_merge_backward(const LseMergeBackwardParams p) {
  const int64_t row = block_index() * (LseMergeConfig::kThreads / kWarpLanes) + warp_index();
  if (row >= p.num_queries * p.heads) return;
  const int64_t query = row / p.heads, head = row % p.heads;
  const int64_t lse_step = p.heads * p.num_queries, lse_at = head * p.num_queries + query;
  const int64_t out_step = p.num_queries * p.heads * p.value_dim, out_at = row * p.value_dim;
  const T* out = static_cast<const T*>(p.out) + out_at;
  const T* dout = static_cast<const T*>(p.dout) + out_at;
  const T total = load_global(static_cast<const T*>(p.lse) + lse_at);
  const T dlse = p.dlse ? load_global(static_cast<const T*>(p.dlse) + lse_at) : T(0);
  const auto add = [](T a, T b) { return a + b; };

  for (int64_t i = 0; i < p.num_partials; ++i) {
    const T lse = load_global(static_cast<const T*>(p.lses) + i * lse_step + lse_at);
    const bool seen = lse != -T(INFINITY);  // else its out may be anything
    const T weight = merge_weight(lse, total);
    T dot = 0;
    NO_UNROLL
    for (int column = lane_index() * kValues; column < p.value_dim; column += kWarpLanes * kValues) {
      const int64_t at = i * out_step + out_at + column;
      Values<T, kValues> dfrom = {};
      if (seen) {
        const auto from = load_values<T, kValues>(static_cast<const T*>(p.outs) + at);
        const auto merged = load_values<T, kValues>(out + column), gradient = load_values<T, kValues>(dout + column);
        UNROLL
        for (int v = 0; v < kValues; ++v) {
          dot += gradient[v] * (from[v] - merged[v]);
          dfrom[v] = weight * gradient[v];
        }
      }
      store_values(static_cast<T*>(p.douts) + at, dfrom);
    }
    dot = reduce_warp(dot, add);
    if (lane_index() == 0)
      store_global(static_cast<T*>(p.dlses) + i * lse_step + lse_at, seen ? weight * (dlse + dot) : T(0));
  }

  if (!p.dsinks) return;
  T dot = 0;
  NO_UNROLL
  for (int column = lane_index() * kValues; column < p.value_dim; column += kWarpLanes * kValues) {
    const auto merged = load_values<T, kValues>(out + column), gradient = load_values<T, kValues>(dout + column);
    UNROLL
    for (int v = 0; v < kValues; ++v) dot += gradient[v] * merged[v];
  }
  dot = reduce_warp(dot, add);
  const T sink = load_global(static_cast<const T*>(p.sinks) + head);
  if (lane_index() == 0) store_global(static_cast<T*>(p.sink_terms) + lse_at, merge_weight(sink, total) * (dlse - dot));
}

template <class T>
struct SinkGradientSmem {
  SharedArray<T, LseMergeConfig::kThreads / kWarpLanes> sums;
};

// dsinks[h] = sum of sink_terms[h], one block a head. Each thread adds its queries in order, then the block its
// threads.
template <class T>
GLOBAL void LAUNCH_BOUNDS(LseMergeConfig::kThreads) lse_merge_dsinks(const LseMergeBackwardParams p) {
  SHARED(SinkGradientSmem<T>, smem);
  const int64_t head = block_index();
  const T* terms = static_cast<const T*>(p.sink_terms) + head * p.num_queries;
  T sum = 0;
  for (int64_t query = thread_index(); query < p.num_queries; query += LseMergeConfig::kThreads)
    sum += load_global(terms + query);
  sum = reduce_block<LseMergeConfig::kThreads>(smem.sums, sum, [](T a, T b) { return a + b; });
  if (thread_index() == 0) store_global(static_cast<T*>(p.dsinks) + head, sum);
}

// launch(shape, kernel, p) with the instantiation that p asks for.
template <class Launch>
void dispatch_lse_merge_backward(const LseMergeBackwardParams& p, const Launch& launch) {
  constexpr int kRowsPerBlock = LseMergeConfig::kThreads / kWarpLanes;
  const int64_t rows = p.num_queries * p.heads;
  if (rows == 0) return;
  const LaunchShape shape = {.blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock, .threads = LseMergeConfig::kThreads};
  const bool together = rows_of_16_bytes(p, {p.outs, p.out, p.dout, p.douts});
  if (p.dtype == DType::kFloat64)
    return together ? launch(shape, &lse_merge_backward<double, 2>, p)
                    : launch(shape, &lse_merge_backward<double, 1>, p);
  return together ? launch(shape, &lse_merge_backward<float, 4>, p) : launch(shape, &lse_merge_backward<float, 1>, p);
}

// After lse_merge_backward.
template <class Launch>
void dispatch_lse_merge_dsinks(const LseMergeBackwardParams& p, const Launch& launch) {
  if (!p.dsinks || p.heads == 0) return;
  LaunchShape shape = {.blocks = p.heads, .threads = LseMergeConfig::kThreads};
  const auto with_type = [&](auto zero) {
    shape.shared_bytes = sizeof(SinkGradientSmem<decltype(zero)>);
    launch(shape, &lse_merge_dsinks<decltype(zero)>, p);
  };
  return p.dtype == DType::kFloat64 ? with_type(double()) : with_type(float());
}

}  // namespace regrow
