// Attention ops: validation, allocation, and the call of the chosen kernels. On CUDA the forward only.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "cpu/kernel_table.h"
#include "kernels/attention_params.h"
#include "kernels/attention_tiling.h"
#include "ops/checks.h"
#include "ops/current_stream.h"
#include "ops/tensors.h"

namespace regrow::ops {
namespace {

Rows rows_of(const Tensor& t, const char* what) {
  CHECK(t.dim() == 3, what, " must be [rows, heads, dim], got shape ", shape(t));
  CHECK(t.numel() == 0 || t.size(2) <= 1 || t.stride(2) == 1, what,
        " must be contiguous in its last dimension, got stride ", t.stride(2), ": call .contiguous()");
  return {t.const_data_ptr(), floating_dtype(t, what), t.stride(0), t.stride(1)};
}

// A gradient may come in any layout (an expanded scalar, say); the last dimension is made contiguous.
Tensor with_contiguous_rows(const Tensor& t) {
  return t.numel() == 0 || t.stride(t.dim() - 1) == 1 ? t : torch::stable::contiguous(t);
}

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

void check_heads(const Call& c) {
  const int64_t query_heads = c.q.size(1), kv_heads = c.k.size(1);
  CHECK(kv_heads > 0 && query_heads > 0 && query_heads % kv_heads == 0, "the ", query_heads,
        " query heads must be a positive multiple of the ", kv_heads, " KV heads");
  CHECK(c.v.size(0) == c.k.size(0) && c.v.size(1) == kv_heads, "v must have the rows and heads of k, ", shape(c.k),
        ", got ", shape(c.v));
  CHECK(c.q.size(2) == c.k.size(2), "q and k must have one head dim, got ", c.q.size(2), " and ", c.k.size(2));
  for (const auto& [dim, what] :
       {std::pair{c.q.size(2), "the head dim of q and k"}, {c.v.size(2), "the head dim of v"}})
    CHECK(dim > 0 && dim % 8 == 0 && dim <= kMaxHeadDim, what, " must be a multiple of 8 up to ", kMaxHeadDim, ", got ",
          dim, ": pad it with zeros");
  CHECK(c.q.scalar_type() == c.k.scalar_type() && c.q.scalar_type() == c.v.scalar_type(),
        "q, k and v must have one dtype, got ", name(floating_dtype(c.q, "q")), ", ", name(floating_dtype(c.k, "k")),
        " and ", name(floating_dtype(c.v, "v")));
}

void check_options(const Call& c) {
  CHECK(!c.window || *c.window > 0, "window must be positive, or None for none, got ", c.window.value_or(0));
  // Kernels multiply by log2(e) in the accumulation dtype.
  const double largest = c.q.scalar_type() == ScalarType::Double ? 1e308 : 1e38;
  CHECK(!c.softcap || (*c.softcap > 0 && *c.softcap < largest), "softcap must be positive and below ", largest,
        ", or None, got ", c.softcap.value_or(0));
  CHECK(std::fabs(c.scale) < largest, "scale must be finite and below ", largest, ", got ", c.scale);
}

Rectangle rectangle_of(const Call& c) {
  check_integers(c.subtree_end, ScalarType::Int, "subtree_end");
  check_integers(c.position_ids, ScalarType::Long, "position_ids");
  CHECK(c.subtree_end.size(0) == c.position_ids.size(0), "subtree_end has ", c.subtree_end.size(0),
        " tokens, position_ids ", c.position_ids.size(0));
  Rectangle r;
  r.subtree_end = c.subtree_end.const_data_ptr<int32_t>();
  r.position_ids = c.position_ids.const_data_ptr<int64_t>();
  r.num_tokens = c.subtree_end.size(0);
  r.num_queries = c.q.size(0);
  r.num_keys = c.k.size(0);
  r.query_start = c.query_start;
  r.key_start = c.key_start;
  // Wider than any path is as good as none, and kernels compare depths as int32.
  r.window = std::min<int64_t>(c.window.value_or(0), std::numeric_limits<int32_t>::max());
  if (c.query_index) {
    check_integers(*c.query_index, ScalarType::Long, "query_index");
    CHECK(c.query_index->size(0) == r.num_queries, "query_index has ", c.query_index->size(0), " entries, q has ",
          r.num_queries, " rows");
    // An empty index has no address: it counts as the empty interval, as in the planner's binding.
    if (r.num_queries) r.query_index = c.query_index->const_data_ptr<int64_t>();
  }
  return r;
}

void check_devices(const Call& c) {
  check_one_device({{"q", &c.q},
                    {"k", &c.k},
                    {"v", &c.v},
                    {"subtree_end", &c.subtree_end},
                    {"position_ids", &c.position_ids},
                    {"plan", &c.plan},
                    {"query_index", pointer(c.query_index)},
                    {"sinks", pointer(c.sinks)}});
}

// Every check of the shared arguments; returns what the kernels read.
AttentionParams attention_params(const Call& c) {
  AttentionParams p;
  check_devices(c);
  p.q = rows_of(c.q, "q");
  p.k = rows_of(c.k, "k");
  p.v = rows_of(c.v, "v");
  check_heads(c);
  check_options(c);
  check_sinks(c.sinks, c.q.size(1), accumulation_type(p.q.dtype));
  p.query_heads = int(c.q.size(1));
  p.kv_heads = int(c.k.size(1));
  p.head_dim = int(c.q.size(2));
  p.value_dim = int(c.v.size(2));
  p.scale = c.scale;
  p.softcap = c.softcap.value_or(0);
  p.sinks = c.sinks ? c.sinks->const_data_ptr() : nullptr;
  p.rectangle = rectangle_of(c);
  CHECK(c.plan.scalar_type() == ScalarType::Int && c.plan.is_contiguous(),
        "plan must be a contiguous int32 tensor as regrow.plan makes it");
  p.plan = PlanView(c.plan.const_data_ptr<int32_t>());
  if (c.q.is_cpu()) {
    const std::string mismatch = p.plan.mismatch(c.plan.numel(), p.rectangle, cpu_tiles(p.query_heads, p.kv_heads));
    CHECK(mismatch.empty(), "the plan does not fit this call: ", mismatch, "; make one with regrow.plan(tree, ...)");
  }
  return p;
}

// Multiplications and additions of one product over all pairs, masked ones too.
int64_t operations(const AttentionParams& p) {
  return 2 * p.rectangle.num_queries * p.rectangle.num_keys * p.query_heads * p.head_dim;
}

// Rows that asynchronous copies of 16 bytes can read: a copy where they lie elsewhere.
Tensor with_aligned_rows(const Tensor& t) {
  const auto aligned = [](int64_t bytes) { return bytes % 16 == 0; };
  const int64_t size = int64_t(t.element_size());
  if (aligned(reinterpret_cast<intptr_t>(t.const_data_ptr())) && aligned(t.stride(0) * size) &&
      aligned(t.stride(1) * size))
    return t;
  return torch::stable::clone(torch::stable::contiguous(t));
}

// What a launch takes from the shape of a plan on CUDA: [rows of the configuration, words].
ForwardTiling cuda_tiling(const AttentionParams& p, const Tensor& plan, int multiprocessors) {
  const int head_dim = padded_head_dim(std::max(p.head_dim, p.value_dim));
  CHECK(p.q.dtype == DType::kBFloat16 || p.q.dtype == DType::kFloat16,
        "on CUDA q, k and v must be bfloat16 or float16, got ", name(p.q.dtype),
        ": cast them, or move them to the CPU");
  CHECK(plan.dim() == 2 && find_configuration(head_dim, int(plan.size(0))) >= 0, "the plan has shape ", shape(plan),
        ", which no kernel for head dim ", head_dim,
        " takes: make it with regrow.plan(tree, head_dim=", std::max(p.head_dim, p.value_dim),
        ", ...) on the device of q");
  return forward_tiling(p, int(plan.size(0)), multiprocessors);
}

void run_on_cuda(AttentionForwardParams& p, const Call& c) {
  const CurrentStream stream(c.q);
  const ForwardTiling tiling = cuda_tiling(p, c.plan, cuda::device_limits(c.q.get_device_index()).multiprocessors);
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
  const cpu::Executor threads = executor(operations(p));
  const cpu::KernelTable& kernels = cpu::kernels();
  const Tensor space = workspace(lse, kernels.attention_backward_workspace(p, threads.num_workers));
  p.workspace = space.mutable_data_ptr();
  kernels.attention_backward(p, threads);
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
  m.impl("tree_attention_fwd", TORCH_BOX(&regrow::ops::tree_attention_fwd));
  m.impl("tree_attention_bwd", TORCH_BOX(&regrow::ops::tree_attention_bwd));
  m.impl("tree_attention_bwd_accum", TORCH_BOX(&regrow::ops::tree_attention_bwd_accum));
}

STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) {
  m.impl("tree_attention_fwd", TORCH_BOX(&regrow::ops::tree_attention_fwd));
}
