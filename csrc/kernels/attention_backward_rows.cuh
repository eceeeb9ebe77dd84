#pragma once

// What the backward asks of each row once: lse in log2 and delta; and the gradient of the sinks.
#include <cmath>

#include "kernels/attention_tiling.h"
#include "platform/numbers.h"
#include "tile/copy.h"
#include "tile/reduce.h"

namespace regrow {

struct BackwardRowsConfig {
  static constexpr int kThreads = 128;
  static constexpr int kMaxRegisters = 40;  // 12 blocks per SM: the kernels wait for memory
  struct Smem {
    SharedArray<float, kThreads / kWarpLanes> sums;
  };
};

// delta = rowsum(dout * out) - dlse, one warp a row; T is the dtype of both.
template <class T>
GLOBAL void LAUNCH_BOUNDS(BackwardRowsConfig::kThreads)
    attention_delta(const AttentionBackwardParams p, const BackwardTiling tiling) {
  constexpr int kValues = 16 / sizeof(T);
  const int64_t row = block_index() * (BackwardRowsConfig::kThreads / kWarpLanes) + warp_index();
  if (row >= p.rectangle.num_queries * p.query_heads) return;
  const int64_t query = row / p.query_heads;
  const int head = int(row % p.query_heads);
  const T* out = static_cast<const T*>(p.out.data) + query * p.out.row_stride + head * p.out.head_stride;
  const T* dout = static_cast<const T*>(p.dout.data) + query * p.dout.row_stride + head * p.dout.head_stride;
  float sum = 0;
  NO_UNROLL  // at most two rounds
  for (int column = lane_index() * kValues; column < p.value_dim; column += kWarpLanes * kValues) {
    const auto a = load_values<T, kValues>(out + column), b = load_values<T, kValues>(dout + column);
    UNROLL
    for (int v = 0; v < kValues; ++v) sum += to_float(a[v]) * to_float(b[v]);
  }
  UNROLL
  for (int lane_mask = kWarpLanes / 2; lane_mask > 0; lane_mask /= 2) sum += shuffle_xor(sum, lane_mask);
  if (lane_index() != 0) return;
  const int64_t at = head * p.rectangle.num_queries + query;
  const float lse = load_global(static_cast<const float*>(p.lse) + at);
  const float dlse = p.dlse ? load_global(static_cast<const float*>(p.dlse) + at) : 0;
  // A row that has seen nothing: exp2(score - inf) is 0.
  store_global(tiling.lse_log2 + at, lse == -INFINITY ? INFINITY : lse * 1.44269504f);
  store_global(tiling.delta + at, sum - dlse);
}

// dsink = -sum(exp(sink - lse) * delta), a block for each head.
template <class Config = BackwardRowsConfig>
GLOBAL void LAUNCH_BOUNDS(Config::kThreads)
    attention_dsinks(const AttentionBackwardParams p, const BackwardTiling tiling) {
  SHARED(typename Config::Smem, smem);
  const int64_t head = block_index(), first = head * p.rectangle.num_queries;
  const float sink = load_global(static_cast<const float*>(p.sinks) + head);
  float sum = 0;
  for (int64_t query = thread_index(); query < p.rectangle.num_queries; query += Config::kThreads) {
    const float lse = load_global(static_cast<const float*>(p.lse) + first + query);
    const float weight = sink == -INFINITY ? 0 : std::exp(sink - lse);  // lse may be -inf as well
    sum -= weight * load_global(tiling.delta + first + query);
  }
  sum = reduce_block<Config::kThreads>(smem.sums, sum, [](float a, float b) { return a + b; });
  if (thread_index() == 0) store_global(static_cast<float*>(p.dsinks) + head, sum);
}

// launch(shape, kernel, p, tiling); p.out and p.dout have one dtype.
template <class Launch>
void dispatch_attention_delta(const AttentionBackwardParams& p, const BackwardTiling& tiling, const Launch& launch) {
  constexpr int kRowsOfBlock = BackwardRowsConfig::kThreads / kWarpLanes;
  const int64_t rows = p.rectangle.num_queries * p.query_heads;
  if (rows == 0) return;
  const LaunchShape shape = {.blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock,
                             .threads = BackwardRowsConfig::kThreads};
  if (p.out.dtype == DType::kFloat32) return launch(shape, &attention_delta<float>, p, tiling);
  if (p.out.dtype == DType::kBFloat16) return launch(shape, &attention_delta<bf16>, p, tiling);
  return launch(shape, &attention_delta<fp16>, p, tiling);
}

// After attention_delta.
template <class Launch>
void dispatch_attention_dsinks(const AttentionBackwardParams& p, const BackwardTiling& tiling, const Launch& launch) {
  if (!p.dsinks) return;
  launch({.blocks = p.query_heads,
          .threads = BackwardRowsConfig::kThreads,
          .shared_bytes = int(sizeof(BackwardRowsConfig::Smem))},
         &attention_dsinks<>, p, tiling);
}

}  // namespace regrow
