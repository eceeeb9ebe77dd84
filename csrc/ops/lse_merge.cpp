// Merging partial results: validation, allocation, and the call of the chosen kernels.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cpu/kernel_table.h"
#include "kernels/attention_params.h"
#include "ops/checks.h"
#include "ops/current_stream.h"

namespace regrow::ops {
namespace {

void fill_merge(LseMergeParams& p, const Tensor& outs, const Tensor& lses, const std::optional<Tensor>& sinks) {
  check_one_device({{"outs", &outs}, {"lses", &lses}, {"sinks", pointer(sinks)}});
  CHECK(outs.dim() == 4, "outs must be [partials, Tq, Hq, Dv], got shape ", shape(outs));
  check_same_shape(lses, {outs.size(0), outs.size(2), outs.size(1)}, "lses");
  p.dtype = floating_dtype(outs, "outs");
  CHECK((p.dtype == DType::kFloat32 || p.dtype == DType::kFloat64) && outs.scalar_type() == lses.scalar_type(),
        "outs and lses must both be float32 or both float64, got ", name(p.dtype), " and ",
        name(floating_dtype(lses, "lses")));
  check_sinks(sinks, outs.size(2), outs.scalar_type());
  p.sinks = sinks ? sinks->const_data_ptr() : nullptr;
  p.num_partials = outs.size(0);
  p.num_queries = outs.size(1);
  p.heads = int(outs.size(2));
  p.value_dim = int(outs.size(3));
}

std::tuple<Tensor, Tensor> lse_merge(const Tensor& outs_any, const Tensor& lses_any,
                                     const std::optional<Tensor>& sinks) {
  LseMergeParams p;
  fill_merge(p, outs_any, lses_any, sinks);
  const Tensor outs = torch::stable::contiguous(outs_any), lses = torch::stable::contiguous(lses_any);
  Tensor out = torch::stable::new_empty(outs, {outs.size(1), outs.size(2), outs.size(3)});
  Tensor lse = torch::stable::new_empty(outs, {outs.size(2), outs.size(1)});
  p.outs = outs.const_data_ptr();
  p.lses = lses.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.lse = lse.mutable_data_ptr();
  if (outs.is_cuda())
    cuda::lse_merge(p, CurrentStream(outs));
  else
    cpu::kernels().lse_merge(p, executor(outs.numel()));
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> lse_merge_bwd(const Tensor& dout_any, const std::optional<Tensor>& dlse_any,
                                                 const Tensor& outs_any, const Tensor& lses_any,
                                                 const std::optional<Tensor>& sinks, const Tensor& out_any,
                                                 const Tensor& lse_any) {
  LseMergeBackwardParams p;
  fill_merge(p, outs_any, lses_any, sinks);
  check_one_device(
      {{"outs", &outs_any}, {"dout", &dout_any}, {"dlse", pointer(dlse_any)}, {"out", &out_any}, {"lse", &lse_any}});
  const Tensor outs = torch::stable::contiguous(outs_any), lses = torch::stable::contiguous(lses_any);
  const Tensor dout = torch::stable::contiguous(dout_any), out = torch::stable::contiguous(out_any);
  const Tensor lse = torch::stable::contiguous(lse_any);
  for (const auto& [tensor, what] : {std::pair{&dout, "dout"}, {&out, "out"}}) {
    check_same_shape(*tensor, {outs.size(1), outs.size(2), outs.size(3)}, what);
    CHECK(tensor->scalar_type() == outs.scalar_type(), what, " must have the dtype of outs");
  }
  std::optional<Tensor> dlse;
  if (dlse_any) dlse = torch::stable::contiguous(*dlse_any);
  for (const auto& [tensor, what] : {std::pair{&lse, "lse"}, {dlse ? &*dlse : &lse, "dlse"}}) {
    check_same_shape(*tensor, {outs.size(2), outs.size(1)}, what);
    CHECK(tensor->scalar_type() == outs.scalar_type(), what, " must have the dtype of outs");
  }
  Tensor douts = torch::stable::empty_like(outs), dlses = torch::stable::empty_like(lses);
  Tensor dsinks = torch::stable::new_empty(outs, {sinks ? outs.size(2) : 0});
  p.outs = outs.const_data_ptr();
  p.lses = lses.const_data_ptr();
  p.out = const_cast<void*>(out.const_data_ptr());
  p.lse = const_cast<void*>(lse.const_data_ptr());
  p.dout = dout.const_data_ptr();
  p.dlse = dlse ? dlse->const_data_ptr() : nullptr;
  p.douts = douts.mutable_data_ptr();
  p.dlses = dlses.mutable_data_ptr();
  p.dsinks = sinks ? dsinks.mutable_data_ptr() : nullptr;
  p.sink_terms = nullptr;
  if (outs.is_cuda()) {
    std::optional<Tensor> sink_terms;
    if (sinks) sink_terms = torch::stable::empty_like(lse);
    if (sinks) p.sink_terms = sink_terms->mutable_data_ptr();
    cuda::lse_merge_backward(p, CurrentStream(outs));
  } else {
    cpu::kernels().lse_merge_backward(p, executor(outs.numel()));
  }
  return {douts, dlses, dsinks};
}

template <class Library>
void implement(Library& m) {
  m.impl("lse_merge", TORCH_BOX(&lse_merge));
  m.impl("lse_merge_bwd", TORCH_BOX(&lse_merge_bwd));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) { implement(m); }

}  // namespace regrow::ops
