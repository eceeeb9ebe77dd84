#pragma once

// What the ops call on CUDA. Each function puts its kernel on `stream`, which belongs to the current device, and
// returns at once: it reads no device memory, allocates nothing and may run under graph capture. Throws
// std::runtime_error where a launch fails, or where the build had no nvcc (unavailable.cpp).
#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/attention_tiling.h"
#include "kernels/gather_params.h"
#include "kernels/logits_params.h"

struct CUstream_st;

namespace regrow::cuda {

using Stream = CUstream_st*;  // cudaStream_t: not every build has CUDA's headers

// The forward, and the merge of query tiles that the plan splits. p.plan and p.workspace lie on the device.
void tree_attention(const AttentionForwardParams& p, const ForwardTiling& tiling, Stream stream);
// Adds to p.dq, p.dk and p.dv. p.out and p.dout have one dtype; dout_operand has that of q.
void tree_attention_backward(const AttentionBackwardParams& p, const Rows& dout_operand, const BackwardTiling& tiling,
                             Stream stream);
void lse_merge(const LseMergeParams& p, Stream stream);
void lse_merge_backward(const LseMergeBackwardParams& p, Stream stream);  // dsinks too
void replay_gather(const GatherParams& p, Stream stream);
void replay_scatter(const ScatterParams& p, Stream stream);
void logits_row_stats(const LogitsParams& p, Stream stream);
void logits_pick(const LogitsPickParams& p, Stream stream);
void logits_row_grad(const LogitsGradParams& p, Stream stream);

struct DeviceLimits {
  int compute_capability;  // 90 for 9.0
  int multiprocessors;
  int shared_bytes_per_block;  // the most that a kernel may ask for
  int shared_bytes_per_multiprocessor;
};

// Read once per device.
DeviceLimits device_limits(int device);

// The calling thread's launches go to this device. The CUDA runtime is linked statically, so it has a current device of
// its own beside that of torch's.
void make_current(int device);

}  // namespace regrow::cuda
