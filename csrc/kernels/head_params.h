#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace regrow {

// A language model's head: logits = hidden weight^T, and its gradients. Accumulation type: fp32, fp64 for fp64.
struct HeadParams {
  const void* hidden;  // [num_rows, width], hidden_stride elements apart
  const void* weight;  // [vocabulary, width], weight_stride elements apart
  DType dtype;         // of hidden and weight
  int64_t num_rows, vocabulary, width;
  int64_t hidden_stride, weight_stride;
  void* workspace;  // head_workspace() bytes
};

struct HeadForwardParams : HeadParams {
  void* logits;  // [num_rows, vocabulary] contiguous, accumulation type
};

struct HeadBackwardParams : HeadParams {
  const void* dlogits;  // [num_rows, vocabulary] contiguous, accumulation type
  void* dhidden;        // [num_rows, width] contiguous, accumulation type, written; or null
  void* dweight;        // [vocabulary, width] contiguous, accumulation type, added to; or null
};

}  // namespace regrow
