#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_configurations.h"
#include "tree/rectangle.h"

namespace regrow {

// What planning for CUDA asks besides the rectangle.
struct CudaPlanRequest {
  int64_t query_heads, kv_heads;
  int64_t head_dim;  // the larger of q's and v's
  int compute_capability, multiprocessors;
  int rows = 0;  // of the configuration to take; 0: the one with the fewest clocks
};

// A plan, and the rows of the configuration that it is for.
struct CudaPlan {
  int rows;
  std::vector<int32_t> words;
};

// Clocks from asking for keys to having them under load, about twice DRAM's latency when idle.
inline constexpr double kCopyLatency = 1000;

// What one pair of tiles asks of a multiprocessor, in clocks of each of its parts.
struct TileClocks {
  double products, operands, keys;  // mma; ldmatrix; keys and values from L2: these overlap
  double softmax;                   // exponentials and fp32 operations
  int resident;                     // blocks that share a multiprocessor

  // Of the multiprocessor, per tile, with `blocks` at work. A block takes its products and its softmax in turn, and
  // waits where others are: a closed queue of two stations.
  double queued(int blocks) const;
  // One block by itself with the two waits for copies that a tile has.
  double alone() const;
  // The longer of both, with the copies of `blocks` under way at once.
  double with_blocks(int blocks) const;
};

TileClocks tile_clocks(const ForwardConfiguration& configuration, const DeviceClass& device);

// Plans the configuration and the number of items that take the fewest clocks. Throws std::invalid_argument as
// build_plan, and for heads and chips that have no kernel.
CudaPlan build_cuda_plan(const Rectangle& rectangle, const CudaPlanRequest& request);

}  // namespace regrow
