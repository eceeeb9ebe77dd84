#pragma once

// What the attention ops of both directions share: the checks of their arguments.
#include "kernels/attention_params.h"
#include "kernels/attention_tiling.h"
#include "ops/tensors.h"

namespace regrow::ops {

// What both directions are called with, in the order of the schema.
struct Call {
  const Tensor &q, &k, &v, &subtree_end, &position_ids, &plan;
  const std::optional<Tensor>& query_index;
  int64_t query_start, key_start;
  double scale;
  std::optional<int64_t> window;
  std::optional<double> softcap;
  const std::optional<Tensor>& sinks;
};

// Every check of the shared arguments; returns what the kernels read.
AttentionParams attention_params(const Call& c);

Rows rows_of(const Tensor& t, const char* what);

// Rows that asynchronous copies of 16 bytes can read: a copy where they lie elsewhere.
Tensor with_aligned_rows(const Tensor& t);

// On CUDA a plan is [rows of a query tile, words]: what a launch reads of it on the host.
int64_t planned_rows(const AttentionParams& p, const Tensor& plan);

// Multiplications and additions of one product over all pairs, masked ones too.
int64_t operations(const AttentionParams& p);

}  // namespace regrow::ops
