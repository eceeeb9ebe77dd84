// The gradients of the attention op: allocation, and the call of the chosen kernels.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cpu/kernel_table.h"
#include "ops/attention_call.h"
#include "ops/checks.h"
#include "ops/current_stream.h"

namespace regrow::ops {
namespace {

// A gradient may come in any layout (an expanded scalar, say); the last dimension is made contiguous.
Tensor with_contiguous_rows(const Tensor& t) {
  return t.numel() == 0 || t.stride(t.dim() - 1) == 1 ? t : torch::stable::contiguous(t);
}

// Of the gradient the delta takes what there is, the products the dtype of q.
void run_on_cuda(AttentionBackwardParams& p, const Call& c, const Tensor& dout_any, const Tensor& out_any) {
  const CurrentStream stream(c.q);
  planned_rows(p, c.plan);
  BackwardTiling tiling = backward_tiling(p, cuda::device_limits(c.q.get_device_index()).multiprocessors);
  const Tensor q = with_aligned_rows(c.q), k = with_aligned_rows(c.k), v = with_aligned_rows(c.v);
  p.q = rows_of(q, "q");
  p.k = rows_of(k, "k");
  p.v = rows_of(v, "v");
  const bool one_dtype = dout_any.scalar_type() == out_any.scalar_type();
  const auto for_delta = [&](const Tensor& t) {
    return with_aligned_rows(one_dtype ? t : torch::stable::to(t, ScalarType::Float));
  };
  const Tensor dout = for_delta(dout_any), out = for_delta(out_any);
  p.dout = rows_of(dout, "dout");
  p.out = rows_of(out, "out");
  const Tensor operand = dout.scalar_type() == q.scalar_type() ? dout : torch::stable::to(dout, q.scalar_type());
  const Tensor floats = workspace(c.q, backward_row_floats(p) * int64_t(sizeof(float)));
  const Tensor counters = torch::stable::new_zeros(c.q, {backward_counters(p, tiling)}, ScalarType::Int);
  give_memory(tiling, p, floats.mutable_data_ptr<float>(), counters.mutable_data_ptr<int32_t>());
  cuda::tree_attention_backward(p, rows_of(operand, "dout"), tiling, stream);
}

void run_on_cpu(AttentionBackwardParams& p, const Call& c) {
  const cpu::Executor threads = executor(operations(p));
  const cpu::KernelTable& kernels = cpu::kernels();
  const Tensor space = workspace(c.q, kernels.attention_backward_workspace(p, threads.num_workers));
  p.workspace = space.mutable_data_ptr();
  kernels.attention_backward(p, threads);
}

// Runs the backward; the accumulators' shapes have been checked or made by the caller.
Tensor run_backward(const Call& c, const Tensor& dout_any, const std::optional<Tensor>& dlse, const Tensor& out_any,
                    const Tensor& lse, const std::optional<Tensor>& dq, const std::optional<Tensor>& dk,
                    const std::optional<Tensor>& dv) {
  AttentionBackwardParams p;
  check_one_device({{"q", &c.q}, {"dout", &dout_any}, {"dlse", pointer(dlse)}, {"out", &out_any}, {"lse", &lse}});
  static_cast<AttentionParams&>(p) = attention_params(c);
  const Tensor dout = with_contiguous_rows(dout_any), out = with_contiguous_rows(out_any);
  const ScalarType accumulation = accumulation_type(p.q.dtype);
  for (const auto& [tensor, what] : {std::pair{&dout, "dout"}, {&out, "out"}}) {
    check_same_shape(*tensor, {c.q.size(0), c.q.size(1), c.v.size(2)}, what);
    CHECK(tensor->scalar_type() == c.q.scalar_type() || tensor->scalar_type() == accumulation, what,
          " must have the dtype of q or the accumulation dtype, got ", name(floating_dtype(*tensor, what)));
  }
  check_same_shape(lse, {c.q.size(1), c.q.size(0)}, "lse");
  CHECK(lse.scalar_type() == accumulation && lse.is_contiguous(),
        "lse must be contiguous and of the accumulation dtype (float32; float64 for float64 inputs)");
  std::optional<Tensor> dense_dlse;
  if (dlse) {
    check_same_shape(*dlse, {c.q.size(1), c.q.size(0)}, "dlse");
    CHECK(dlse->scalar_type() == accumulation, "dlse must have the dtype of lse");
    dense_dlse = torch::stable::contiguous(*dlse);
  }
  Tensor dsinks = torch::stable::new_empty(lse, {c.sinks ? c.q.size(1) : 0}, accumulation);
  p.dout = rows_of(dout, "dout");
  p.out = rows_of(out, "out");
  p.lse = lse.const_data_ptr();
  p.dlse = dense_dlse ? dense_dlse->const_data_ptr() : nullptr;
  p.dq = dq ? dq->mutable_data_ptr() : nullptr;
  p.dk = dk ? dk->mutable_data_ptr() : nullptr;
  p.dv = dv ? dv->mutable_data_ptr() : nullptr;
  p.dsinks = c.sinks ? dsinks.mutable_data_ptr() : nullptr;
  c.q.is_cuda() ? run_on_cuda(p, c, dout, out) : run_on_cpu(p, c);
  return dsinks;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> tree_attention_bwd(
    const Tensor& dout, const std::optional<Tensor>& dlse, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& lse, const Tensor& subtree_end, const Tensor& position_ids, const Tensor& plan,
    const std::optional<Tensor>& query_index, int64_t query_start, int64_t key_start, double scale,
    std::optional<int64_t> window, std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const ScalarType accumulation = accumulation_type(floating_dtype(q, "q"));
  const auto zeros = [&](const Tensor& like) {
    return torch::stable::new_zeros(like, {like.size(0), like.size(1), like.size(2)}, accumulation);
  };
  Tensor dq = zeros(q), dk = zeros(k), dv = zeros(v);
  Tensor dsinks = run_backward(
      {q, k, v, subtree_end, position_ids, plan, query_index, query_start, key_start, scale, window, softcap, sinks},
      dout, dlse, out, lse, dq, dk, dv);
  if (accumulation != q.scalar_type()) {
    for (Tensor* gradient : {&dq, &dk, &dv}) *gradient = torch::stable::to(*gradient, q.scalar_type());
  }
  return {dq, dk, dv, dsinks};
}

void check_accumulator(const std::optional<Tensor>& t, const Tensor& q, const Tensor& like, ScalarType dtype,
                       const char* what) {
  if (!t) return;
  check_one_device({{"q", &q}, {what, &*t}});
  check_same_shape(*t, {like.size(0), like.size(1), like.size(2)}, what);
  CHECK(t->scalar_type() == dtype && t->is_contiguous(), what,
        " must be contiguous and float32 (float64 for float64 inputs)");
}

Tensor tree_attention_bwd_accum(const Tensor& dout, const std::optional<Tensor>& dlse, const Tensor& q, const Tensor& k,
                                const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& subtree_end,
                                const Tensor& position_ids, const Tensor& plan,
                                const std::optional<Tensor>& query_index, int64_t query_start, int64_t key_start,
                                double scale, std::optional<int64_t> window, std::optional<double> softcap,
                                const std::optional<Tensor>& sinks, const std::optional<Tensor>& dq_accum,
                                const std::optional<Tensor>& dk_accum, const std::optional<Tensor>& dv_accum) {
  const ScalarType accumulation = accumulation_type(floating_dtype(q, "q"));
  check_accumulator(dq_accum, q, q, accumulation, "dq_accum");
  check_accumulator(dk_accum, q, k, accumulation, "dk_accum");
  check_accumulator(dv_accum, q, v, accumulation, "dv_accum");
  CHECK(dk_accum.has_value() == dv_accum.has_value(), "dk_accum and dv_accum go together: pass both or neither");
  return run_backward(
      {q, k, v, subtree_end, position_ids, plan, query_index, query_start, key_start, scale, window, softcap, sinks},
      dout, dlse, out, lse, dq_accum, dk_accum, dv_accum);
}

}  // namespace
}  // namespace regrow::ops

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) {
  m.impl("tree_attention_bwd", TORCH_BOX(&regrow::ops::tree_attention_bwd));
  m.impl("tree_attention_bwd_accum", TORCH_BOX(&regrow::ops::tree_attention_bwd_accum));
}
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) {
  m.impl("tree_attention_bwd", TORCH_BOX(&regrow::ops::tree_attention_bwd));
  m.impl("tree_attention_bwd_accum", TORCH_BOX(&regrow::ops::tree_attention_bwd_accum));
}
