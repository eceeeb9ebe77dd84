#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace regrow {

// x = softcap * tanh(logits / softcap) / temperature. fp32 results and gradients; fp64 for fp64 logits.
struct LogitsParams {
  void* logits;  // [num_rows, vocabulary], row_stride elements apart
  DType dtype;
  int64_t num_rows, vocabulary, row_stride;
  double temperature;
  double softcap;  // 0: none
  double* lse;     // [num_rows]; fp64 always: in fp32, logits near 1e4 would leave x - lse two digits
  void* entropy;   // [num_rows] nats
};

// logp[n] = x[target_row[n], target_token[n]] - lse[target_row[n]]
struct LogitsPickParams {
  LogitsParams rows;
  const int64_t* target_row;    // [num_targets]
  const int64_t* target_token;  // [num_targets]
  int64_t num_targets;
  void* logp;  // [num_targets]
};

// logits <- dL/dlogits, in place; row r owns the targets [row_start[r], row_start[r + 1]), whose
// tokens ascend.
struct LogitsGradParams {
  LogitsParams rows;
  const int64_t* row_start;     // [num_rows + 1]
  const int64_t* target_token;  // [num_targets]
  int64_t num_targets;
  const void* dlogp;     // [num_targets]
  const void* dentropy;  // [num_rows] or null
};

}  // namespace regrow
