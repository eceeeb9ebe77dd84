// The attention op: allocation, and the call of the chosen kernels.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cpu/kernel_table.h"
#include "ops/attention_call.h"
#include "ops/checks.h"
#include "ops/current_stream.h"

namespace regrow::ops {
namespace {

void run_on_cuda(AttentionForwardParams& p, const Call& c) {
  const CurrentStream stream(c.q);
  const int multiprocessors = cuda::device_limits(c.q.get_device_index()).multiprocessors;
  const ForwardTiling tiling = forward_tiling(p, int(planned_rows(p, c.plan)), multiprocessors);
  const Tensor q = with_aligned_rows(c.q), k = with_aligned_rows(c.k), v = with_aligned_rows(c.v);
  p.q = rows_of(q, "q");
  p.k = rows_of(k, "k");
  p.v = rows_of(v, "v");
  const Tensor space = workspace(c.q, forward_workspace_bytes(p, tiling));
  p.workspace = space.mutable_data_ptr();
  cuda::tree_attention(p, tiling, stream);
}

void run_on_cpu(AttentionForwardParams& p, const Call& c) {
  const cpu::Executor threads = executor(operations(p));
  const cpu::KernelTable& kernels = cpu::kernels();
  const Tensor space = workspace(c.q, kernels.attention_forward_workspace(p, threads.num_workers));
  p.workspace = space.mutable_data_ptr();
  kernels.attention_forward(p, threads);
}

std::tuple<Tensor, Tensor> tree_attention_fwd(const Tensor& q, const Tensor& k, const Tensor& v,
                                              const Tensor& subtree_end, const Tensor& position_ids, const Tensor& plan,
                                              const std::optional<Tensor>& query_index, int64_t query_start,
                                              int64_t key_start, double scale, std::optional<int64_t> window,
                                              std::optional<double> softcap, const std::optional<Tensor>& sinks,
                                              bool partial) {
  const Call call = {q,           k,         v,     subtree_end, position_ids, plan, query_index,
                     query_start, key_start, scale, window,      softcap,      sinks};
  AttentionForwardParams p;
  static_cast<AttentionParams&>(p) = attention_params(call);
  CHECK(!partial || !sinks, "a partial result leaves the sinks out: pass them to lse_merge");
  const ScalarType accumulation = accumulation_type(p.q.dtype);
  Tensor out = torch::stable::new_empty(q, {q.size(0), q.size(1), v.size(2)}, partial ? accumulation : q.scalar_type());
  Tensor lse = torch::stable::new_empty(q, {q.size(1), q.size(0)}, accumulation);
  p.out = out.mutable_data_ptr();
  p.out_dtype = *dtype_of(out);
  p.lse = lse.mutable_data_ptr();
  q.is_cuda() ? run_on_cuda(p, call) : run_on_cpu(p, call);
  return {out, lse};
}

}  // namespace
}  // namespace regrow::ops

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) { m.impl("tree_attention_fwd", TORCH_BOX(&regrow::ops::tree_attention_fwd)); }
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) {
  m.impl("tree_attention_fwd", TORCH_BOX(&regrow::ops::tree_attention_fwd));
}
