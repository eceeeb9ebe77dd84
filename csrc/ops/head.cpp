// The head of a language model. On the CPU in-house products, since torch's promise no bits across thread counts; on
// CUDA torch's.
#include <torch/csrc/stable/library.h>

#include "cpu/kernel_table.h"
#include "ops/aten.h"
#include "ops/checks.h"
#include "ops/head_products.h"
#include "ops/skinny.h"

namespace regrow::ops {
namespace {

void check_matrix(const Tensor& t, int64_t rows, int64_t columns, ScalarType dtype, const char* what) {
  CHECK(t.dim() == 2 && t.size(0) == rows && t.size(1) == columns && t.scalar_type() == dtype && t.is_contiguous(),
        what, " must be a contiguous [", rows, ", ", columns, "] tensor of the accumulation dtype, got shape ",
        shape(t));
}

void fill(HeadParams& p, const Tensor& hidden, const Tensor& weight) {
  p.dtype = floating_dtype(hidden, "hidden");
  p.hidden = hidden.const_data_ptr();
  p.weight = weight.const_data_ptr();
  p.num_rows = hidden.size(0);
  p.vocabulary = weight.size(0);
  p.width = hidden.size(1);
  p.hidden_stride = hidden.stride(0);
  p.weight_stride = weight.stride(0);
}

void check_head(const Tensor& hidden, const Tensor& weight) {
  CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1),
        "hidden must be [R, H] and weight [V, H], got ", shape(hidden), " and ", shape(weight));
  CHECK(hidden.scalar_type() == weight.scalar_type(), "hidden and weight must have one dtype, got ",
        name(floating_dtype(hidden, "hidden")), " and ", name(floating_dtype(weight, "weight")));
}

cpu::Executor head_executor(const HeadParams& p) { return executor(2 * p.num_rows * p.vocabulary * p.width); }

void head_logits_out(const Tensor& hidden_any, const Tensor& weight_any, Tensor out, bool few_rows) {
  check_one_device({{"hidden", &hidden_any}, {"weight", &weight_any}, {"out", &out}});
  check_head(hidden_any, weight_any);
  const ScalarType accumulation = accumulation_type(floating_dtype(hidden_any, "hidden"));
  check_matrix(out, hidden_any.size(0), weight_any.size(0), accumulation, "out");
  if (out.numel() == 0) return;
  if (out.is_cuda()) return aten::matmul_into(hidden_any, torch::stable::transpose(weight_any, 0, 1), out);
  if (few_rows) return skinny_into(hidden_any, weight_any, std::nullopt, out);
  const Tensor hidden = with_contiguous_columns(hidden_any), weight = with_contiguous_columns(weight_any);
  HeadForwardParams p;
  fill(p, hidden, weight);
  p.logits = out.mutable_data_ptr();
  const cpu::Executor threads = head_executor(p);
  const Tensor space = workspace(hidden, cpu::kernels().head_workspace(p, threads.num_workers));
  p.workspace = space.mutable_data_ptr();
  cpu::kernels().head_forward(p, threads);
}

void head_logits_bwd(const Tensor& dlogits, const Tensor& hidden_any, const Tensor& weight_any,
                     std::optional<Tensor> dhidden, std::optional<Tensor> dweight) {
  check_one_device({{"hidden", &hidden_any},
                    {"weight", &weight_any},
                    {"dlogits", &dlogits},
                    {"dhidden", pointer(dhidden)},
                    {"dweight", pointer(dweight)}});
  check_head(hidden_any, weight_any);
  const int64_t num_rows = hidden_any.size(0), vocabulary = weight_any.size(0), width = hidden_any.size(1);
  const ScalarType accumulation = accumulation_type(floating_dtype(hidden_any, "hidden"));
  check_matrix(dlogits, num_rows, vocabulary, accumulation, "dlogits");
  if (dhidden) check_matrix(*dhidden, num_rows, width, accumulation, "dhidden");
  if (dweight) check_matrix(*dweight, vocabulary, width, accumulation, "dweight");
  if (hidden_any.is_cuda()) return head_gradients(dlogits, hidden_any, weight_any, dhidden, dweight);
  const Tensor hidden = with_contiguous_columns(hidden_any), weight = with_contiguous_columns(weight_any);
  HeadBackwardParams p;
  fill(p, hidden, weight);
  p.dlogits = dlogits.const_data_ptr();
  p.dhidden = dhidden && dhidden->numel() ? dhidden->mutable_data_ptr() : nullptr;
  p.dweight = dweight && dweight->numel() ? dweight->mutable_data_ptr() : nullptr;
  const cpu::Executor threads = head_executor(p);
  const Tensor space = workspace(hidden, cpu::kernels().head_workspace(p, threads.num_workers));
  p.workspace = space.mutable_data_ptr();
  cpu::kernels().head_backward(p, threads);
}

template <class Library>
void implement(Library& m) {
  m.impl("head_logits_out", TORCH_BOX(&head_logits_out));
  m.impl("head_logits_bwd", TORCH_BOX(&head_logits_bwd));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) { implement(m); }

}  // namespace regrow::ops
