#pragma once

// Products of few rows on the CPU.

#include <optional>

#include "ops/tensors.h"

namespace regrow::ops {

// out = input [R,K] weight [N,K]^T + bias [N]; out [R,N] contiguous, of their dtype or of their sums'.
void skinny_into(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, Tensor out);

// The tensor itself if its last dimension is dense.
inline Tensor with_contiguous_columns(const Tensor& t) {
  return t.numel() == 0 || t.size(1) == 1 || t.stride(1) == 1 ? t : torch::stable::contiguous(t);
}

}  // namespace regrow::ops
