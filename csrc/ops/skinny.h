#pragma once

// Products of few rows on the CPU.

#include <optional>

#include "ops/tensors.h"

namespace regrow::ops {

// out = input [R,K] weight [N,K]^T + bias [N]; out [R,N] contiguous, of their dtype or of their sums'.
void skinny_into(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, Tensor out);

}  // namespace regrow::ops
