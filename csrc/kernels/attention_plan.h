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

// What one pair of tiles takes a multiprocessor: the slowest of products, operands from shared memory, exponentials and
// keys and values from L2, which overlap.
double tile_clocks(const ForwardConfiguration& configuration, const DeviceClass& device);

// Plans the configuration whose tiles take the fewest clocks in all. Throws std::invalid_argument as build_plan, and
// for heads and chips that have no kernel.
CudaPlan build_cuda_plan(const Rectangle& rectangle, const CudaPlanRequest& request);

}  // namespace regrow
