#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace regrow {

// out = input weight^T + bias for few rows of input. Sums are fp32, fp64 for fp64.
struct SkinnyParams {
  const void* input;   // [num_rows, width], input_stride elements apart
  const void* weight;  // [num_outputs, width], weight_stride elements apart
  const void* bias;    // [num_outputs] contiguous, or null
  void* out;           // [num_rows, num_outputs] contiguous
  DType dtype;         // of input, weight and bias
  bool wide;           // out has the sums' dtype, not dtype
  int64_t num_rows, num_outputs, width;
  int64_t input_stride, weight_stride;
  void* workspace;  // skinny_workspace() bytes
};

}  // namespace regrow
