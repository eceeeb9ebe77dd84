#include "ops/attention_call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/checks.h"

namespace regrow::ops {
namespace {

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

}  // namespace

Rows rows_of(const Tensor& t, const char* what) {
  CHECK(t.dim() == 3, what, " must be [rows, heads, dim], got shape ", shape(t));
  CHECK(t.numel() == 0 || t.size(2) <= 1 || t.stride(2) == 1, what,
        " must be contiguous in its last dimension, got stride ", t.stride(2), ": call .contiguous()");
  return {t.const_data_ptr(), floating_dtype(t, what), t.stride(0), t.stride(1)};
}

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

int64_t operations(const AttentionParams& p) {
  return 2 * p.rectangle.num_queries * p.rectangle.num_keys * p.query_heads * p.head_dim;
}

Tensor with_aligned_rows(const Tensor& t) {
  const auto aligned = [](int64_t bytes) { return bytes % 16 == 0; };
  const int64_t size = int64_t(t.element_size());
  if (aligned(reinterpret_cast<intptr_t>(t.const_data_ptr())) && aligned(t.stride(0) * size) &&
      aligned(t.stride(1) * size))
    return t;
  return torch::stable::clone(torch::stable::contiguous(t));
}

int64_t planned_rows(const AttentionParams& p, const Tensor& plan) {
  const int head_dim = padded_head_dim(std::max(p.head_dim, p.value_dim));
  CHECK(p.q.dtype == DType::kBFloat16 || p.q.dtype == DType::kFloat16,
        "on CUDA q, k and v must be bfloat16 or float16, got ", name(p.q.dtype),
        ": cast them, or move them to the CPU");
  CHECK(plan.dim() == 2 && find_configuration(head_dim, int(plan.size(0))) >= 0, "the plan has shape ", shape(plan),
        ", which no kernel for head dim ", head_dim,
        " takes: make it with regrow.plan(tree, head_dim=", std::max(p.head_dim, p.value_dim),
        ", ...) on the device of q");
  return plan.size(0);
}

}  // namespace regrow::ops
