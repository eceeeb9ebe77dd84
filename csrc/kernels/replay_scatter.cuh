#pragma once

#include "kernels/gather_params.h"
#include "platform/memory.h"
#include "platform/numbers.h"
#include "platform/require.h"

namespace regrow {

struct ReplayScatterConfig {
  static constexpr int kThreads = 128;
  static constexpr int kMaxRegisters = 40;  // 12 blocks per SM: the sum of a row is a chain of loads
};

// A block sums kThreads columns of one destination row, in the order of its sources.
template <class S>
GLOBAL void LAUNCH_BOUNDS(ReplayScatterConfig::kThreads) replay_scatter(const ScatterParams p) {
  const int64_t row = block_index();
  const int64_t column = int64_t(block_index_y()) * ReplayScatterConfig::kThreads + thread_index();
  if (row == 0 && column == 0)  // sorted sources: what lies outside is before the first row's, or after the last one's
    require(load_global(p.start) == 0 && load_global(p.start + p.num_rows) == p.num_src_rows,
            "replay_scatter: index must be in [0, num_rows): look at index.min() and .max()");
  if (column >= p.row_size) return;
  const int64_t begin = load_global(p.start + row), end = load_global(p.start + row + 1);
  const S* src = static_cast<const S*>(p.src) + column;

  typename SumOf<S>::Type sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const auto x = to_sum(load_global(src + load_global(p.order + i) * p.src_stride));
    sum = i == begin ? x : sum + x;  // -0 stays
  }
  store_global(static_cast<S*>(p.out) + row * p.row_size + column, from_sum<S>(sum));
}

// launch(shape, kernel, p) with the instantiation that p asks for.
template <class Launch>
void dispatch_replay_scatter(const ScatterParams& p, const Launch& launch) {
  if (p.num_rows == 0 || p.row_size == 0) return;
  constexpr int kThreads = ReplayScatterConfig::kThreads;
  const LaunchShape shape = {
      .blocks = p.num_rows, .blocks_y = int((p.row_size + kThreads - 1) / kThreads), .threads = kThreads};
  switch (p.dtype) {
    case DType::kFloat64:
      return launch(shape, &replay_scatter<double>, p);
    case DType::kFloat32:
      return launch(shape, &replay_scatter<float>, p);
    case DType::kBFloat16:
      return launch(shape, &replay_scatter<bf16>, p);
    case DType::kFloat16:
      return launch(shape, &replay_scatter<fp16>, p);
    case DType::kInt64:
      return launch(shape, &replay_scatter<uint64_t>, p);
    case DType::kInt32:
      return launch(shape, &replay_scatter<uint32_t>, p);
    case DType::kInt16:
      return launch(shape, &replay_scatter<uint16_t>, p);
    case DType::kInt8:
    case DType::kUInt8:
      return launch(shape, &replay_scatter<uint8_t>, p);
  }
}

}  // namespace regrow
