// A linear layer for few rows, as in decoding, where the time is that of reading the weight. On CUDA torch's.
#include "ops/skinny.h"

#include <torch/csrc/stable/library.h>

#include <vector>

#include "cpu/kernel_table.h"
#include "ops/aten.h"
#include "ops/checks.h"

namespace regrow::ops {

void skinny_into(const Tensor& input_any, const Tensor& weight_any, const std::optional<Tensor>& bias, Tensor out) {
  const Tensor input = with_contiguous_columns(input_any), weight = with_contiguous_columns(weight_any);
  SkinnyParams p;
  p.dtype = floating_dtype(weight, "weight");
  p.input = input.const_data_ptr();
  p.weight = weight.const_data_ptr();
  p.bias = bias ? bias->const_data_ptr() : nullptr;
  p.out = out.mutable_data_ptr();
  p.wide = out.scalar_type() != weight.scalar_type();
  p.num_rows = input.size(0);
  p.num_outputs = weight.size(0);
  p.width = input.size(1);
  p.input_stride = input.stride(0);
  p.weight_stride = weight.stride(0);
  const int64_t bytes = cpu::kernels().skinny_workspace(p);
  const std::optional<Tensor> space = bytes ? std::optional(workspace(input, bytes)) : std::nullopt;
  p.workspace = space ? space->mutable_data_ptr() : nullptr;
  // Reading a value of the weight takes as long as 16 operations.
  cpu::kernels().skinny(p, executor((2 * p.num_rows + 16) * p.num_outputs * p.width));
}

namespace {

Tensor skinny_linear(const Tensor& input, const Tensor& weight, std::optional<Tensor> bias) {
  check_one_device({{"input", &input}, {"weight", &weight}, {"bias", pointer(bias)}});
  CHECK(input.dim() >= 1 && weight.dim() == 2 && input.size(-1) == weight.size(1),
        "input must be [..., K] and weight [N, K], got ", shape(input), " and ", shape(weight));
  const DType dtype = floating_dtype(weight, "weight");
  CHECK(input.scalar_type() == weight.scalar_type() && (!bias || bias->scalar_type() == weight.scalar_type()),
        "input, weight and bias must have one dtype, got input in ", name(floating_dtype(input, "input")),
        " and weight in ", name(dtype));
  if (bias) {
    check_same_shape(*bias, {weight.size(0)}, "bias");
    CHECK(weight.size(0) < 2 || bias->stride(0) == 1, "bias must be contiguous");
  }
  if (weight.is_cuda()) return aten::linear(input, weight, bias);
  const int64_t width = weight.size(1);
  std::vector<int64_t> sizes;
  int64_t num_rows = 1;
  for (int64_t d = 0; d + 1 < input.dim(); ++d) {
    sizes.push_back(input.size(d));
    num_rows *= input.size(d);
  }
  sizes.push_back(weight.size(0));
  const Tensor out = torch::stable::new_empty(weight, sizes);
  if (out.numel())
    skinny_into(input.dim() == 2 ? input : torch::stable::reshape(input, {num_rows, width}), weight, bias, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) { m.impl("skinny_linear", TORCH_BOX(&skinny_linear)); }
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) { m.impl("skinny_linear", TORCH_BOX(&skinny_linear)); }

}  // namespace regrow::ops
