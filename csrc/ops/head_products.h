#pragma once

// The gradients of the head by torch's products, as CUDA has them.
#include <torch/csrc/stable/ops.h>

#include "ops/aten.h"

namespace regrow::ops {

// dhidden = dlogits weight, dweight += dlogits^T hidden, sums in the gradients' dtype. dlogits are rounded once to the
// dtype of hidden and weight, which tensor cores multiply: for 16-bit floats that is a copy, as long as this call.
inline void head_gradients(const Tensor& dlogits_wide, const Tensor& hidden, const Tensor& weight,
                           const std::optional<Tensor>& dhidden, const std::optional<Tensor>& dweight) {
  const Tensor dlogits = torch::stable::to(dlogits_wide, hidden.scalar_type());
  if (dhidden && dhidden->numel()) aten::matmul_into(dlogits, weight, *dhidden);
  if (dweight && dweight->numel() && hidden.size(0))
    aten::add_matmul(torch::stable::transpose(dlogits, 0, 1), hidden, *dweight);
}

}  // namespace regrow::ops
