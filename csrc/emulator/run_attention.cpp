#include "emulator/runs.h"
#include "kernels/tree_attention.cuh"
#include "kernels/tree_attention_backward.cuh"
#include "kernels/tree_attention_merge.cuh"
#include "platform/check.h"

namespace regrow::emulator {
namespace {

Rows rows_of(const py::array& array, DType dtype) {
  CHECK(array.ndim() == 3 && (!array.size() || array.strides(2) == array.itemsize()),
        "q, k and v must be [rows, heads, dim]");
  return {array.data(), dtype, array.strides(0) / array.itemsize(), array.strides(1) / array.itemsize()};
}

// From the first element to the last, gaps between rows included.
void add_rows(GlobalMemory& memory, const char* name, const py::array& array) {
  int64_t bytes = array.size() ? array.itemsize() : 0;
  for (int d = 0; bytes && d < array.ndim(); ++d) bytes += (array.shape(d) - 1) * array.strides(d);
  memory.add(name, array.data(), bytes, int(array.itemsize()), false);
}

// The tensors of a call, as tests pass them.
struct Call {
  py::array q, k, v;  // uint16
  Array<int32_t> subtree_end;
  Array<int64_t> position_ids;
  std::optional<Array<int64_t>> query_index;
  std::optional<Array<float>> sinks;

  void add_to(GlobalMemory& memory) const {
    add_rows(memory, "q", q);
    add_rows(memory, "k", k);
    add_rows(memory, "v", v);
    add_input(memory, "subtree_end", subtree_end);
    add_input(memory, "position_ids", position_ids);
    if (query_index) add_input(memory, "query_index", *query_index);
    if (sinks) add_input(memory, "sinks", *sinks);
  }
};

// What both directions are called with.
void fill_params(AttentionParams& p, const Call& c, const std::string& dtype_name, int64_t query_start,
                 int64_t key_start, double scale, int64_t window, double softcap) {
  const DType dtype = dtype_named(dtype_name);
  CHECK(dtype == DType::kBFloat16 || dtype == DType::kFloat16, "dtype must be bfloat16 or float16, got ", dtype_name);
  p.q = rows_of(c.q, dtype);
  p.k = rows_of(c.k, dtype);
  p.v = rows_of(c.v, dtype);
  p.query_heads = int(c.q.shape(1));
  p.kv_heads = int(c.k.shape(1));
  p.head_dim = int(c.q.shape(2));
  p.value_dim = int(c.v.shape(2));
  p.scale = scale;
  p.softcap = softcap;
  p.sinks = c.sinks ? c.sinks->data() : nullptr;
  p.rectangle = {.subtree_end = c.subtree_end.data(),
                 .position_ids = c.position_ids.data(),
                 .num_tokens = c.subtree_end.size(),
                 .query_index = c.query_index && c.query_index->size() ? c.query_index->data() : nullptr,
                 .query_start = query_start,
                 .num_queries = c.q.shape(0),
                 .key_start = key_start,
                 .num_keys = c.k.shape(0),
                 .window = window};
}

// out, lse and the report of both launches: the forward, and the merge of split query tiles.
py::tuple run_tree_attention(const py::array& q, const py::array& k, const py::array& v,
                             const Array<int32_t>& subtree_end, const Array<int64_t>& position_ids,
                             const Array<int32_t>& plan, int rows, int multiprocessors,
                             const std::optional<Array<int64_t>>& query_index, int64_t query_start, int64_t key_start,
                             double scale, int64_t window, double softcap, const std::optional<Array<float>>& sinks,
                             bool partial, const std::string& dtype, const Options& options) {
  const Call call = {q, k, v, subtree_end, position_ids, query_index, sinks};
  AttentionForwardParams p = {};
  fill_params(p, call, dtype, query_start, key_start, scale, window, softcap);
  p.plan = PlanView(plan.data());
  const ForwardTiling tiling = forward_tiling(p, rows, multiprocessors);
  py::array out = poisoned_like(partial ? py::array(Array<float>(1)) : q, {q.shape(0), q.shape(1), v.shape(2)});
  py::array lse = poisoned_like(Array<float>(1), {q.shape(1), q.shape(0)});
  py::array workspace = poisoned_like(Array<float>(1), {py::ssize_t(forward_workspace_bytes(p, tiling) / 4)});
  p.out = out.mutable_data();
  p.out_dtype = partial ? DType::kFloat32 : p.q.dtype;
  p.lse = lse.mutable_data();
  p.workspace = workspace.mutable_data();

  GlobalMemory memory, merge_memory;
  call.add_to(memory);
  add_input(memory, "plan", plan);
  add_input(merge_memory, "plan", plan);
  if (sinks) add_input(merge_memory, "sinks", *sinks);
  for (GlobalMemory* m : {&memory, &merge_memory}) {
    add_output(*m, "out", out);
    add_output(*m, "lse", lse);
    add_output(*m, "workspace", workspace);
  }
  Report report, merge_report;
  const auto forward = launcher(memory, options, report);
  with_head_dim(std::max(p.head_dim, p.value_dim),
                [&]<int kHeadDim>() { dispatch_tree_attention<kHeadDim>(p, tiling, forward); });
  Options merge_options = options;
  merge_options.skip = "";  // it has nothing to skip
  dispatch_tree_attention_merge(p, tiling, launcher(merge_memory, merge_options, merge_report));
  CHECK(merge_report.sync_points.empty(), "the merge has synchronisation points: let them be skipped");
  return py::make_tuple(out, lse, report);
}

// Adds to dq, dk and dv (fp32; an empty array: not wanted), and returns dsinks and the report of the main launch, with
// the synchronisation points of all three. out and dout have the dtype of q, or are both fp32.
py::tuple run_tree_attention_backward(const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                                      const py::array& dout, const Array<float>& lse,
                                      const std::optional<Array<float>>& dlse, const Array<int32_t>& subtree_end,
                                      const Array<int64_t>& position_ids, const Array<int32_t>& plan,
                                      int multiprocessors, const std::optional<Array<int64_t>>& query_index,
                                      int64_t query_start, int64_t key_start, double scale, int64_t window,
                                      double softcap, const std::optional<Array<float>>& sinks,
                                      const py::array& dout_operand, py::array dq, py::array dk, py::array dv,
                                      const std::string& dtype, const Options& options) {
  const Call call = {q, k, v, subtree_end, position_ids, query_index, sinks};
  AttentionBackwardParams p = {};
  fill_params(p, call, dtype, query_start, key_start, scale, window, softcap);
  p.plan = PlanView(plan.data());
  BackwardTiling tiling = backward_tiling(p, multiprocessors);
  py::array floats = poisoned_like(Array<float>(1), {py::ssize_t(backward_row_floats(p))});
  Array<int32_t> counters(backward_counters(p, tiling));
  std::fill(counters.mutable_data(), counters.mutable_data() + counters.size(), 0);
  give_memory(tiling, p, static_cast<float*>(floats.mutable_data()), counters.mutable_data());
  py::array dsinks = poisoned_like(Array<float>(1), {sinks ? q.shape(1) : 0});
  const DType wide = out.itemsize() == 4 ? DType::kFloat32 : p.q.dtype;
  p.out = rows_of(out, wide);
  p.dout = rows_of(dout, wide);
  p.lse = lse.data();
  p.dlse = dlse ? dlse->data() : nullptr;
  p.dq = dq.size() ? dq.mutable_data() : nullptr;
  p.dk = dk.size() ? dk.mutable_data() : nullptr;
  p.dv = dk.size() ? dv.mutable_data() : nullptr;
  p.dsinks = sinks ? dsinks.mutable_data() : nullptr;

  GlobalMemory delta_memory, sink_memory, memory;
  for (GlobalMemory* m : {&delta_memory, &sink_memory}) {
    add_rows(*m, "out", out);
    add_rows(*m, "dout", dout);
    add_input(*m, "lse", lse);
    if (dlse) add_input(*m, "dlse", *dlse);
    if (sinks) add_input(*m, "sinks", *sinks);
    add_output(*m, "rows", floats);
    if (sinks) add_output(*m, "dsinks", dsinks);
  }
  // A point is skipped in the launch that has it.
  const bool skips_rows = options.skip.starts_with("attention_backward_rows.cuh");
  Options delta_options = options, sink_options = options, main_options = options;
  delta_options.skip = "";
  (skips_rows ? main_options : sink_options).skip = "";
  Report delta_report, sink_report, report;
  dispatch_attention_delta(p, tiling, launcher(delta_memory, delta_options, delta_report));
  CHECK(delta_report.sync_points.empty(), "attention_delta has synchronisation points: let them be skipped");
  dispatch_attention_dsinks(p, tiling, launcher(sink_memory, sink_options, sink_report));

  p.dout = rows_of(dout_operand, p.q.dtype);
  call.add_to(memory);
  add_rows(memory, "dout", dout_operand);
  add_input(memory, "rows", floats);
  add_input(memory, "plan", plan);
  add_output(memory, "counters", counters);
  add_output(memory, "dq", dq);
  add_output(memory, "dk", dk);
  add_output(memory, "dv", dv);
  const auto launch = launcher(memory, main_options, report);
  with_head_dim(std::max(p.head_dim, p.value_dim),
                [&]<int kHeadDim>() { dispatch_tree_attention_backward<kHeadDim>(p, tiling, launch); });
  report.sync_points.insert(sink_report.sync_points.begin(), sink_report.sync_points.end());
  return py::make_tuple(dq, dk, dv, dsinks, report);
}

}  // namespace

void bind_attention(py::module_& m) {
  m.def("tree_attention", &run_tree_attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("subtree_end"),
        py::arg("position_ids"), py::arg("plan"), py::arg("rows"), py::arg("multiprocessors"), py::arg("query_index"),
        py::arg("query_start"), py::arg("key_start"), py::arg("scale"), py::arg("window"), py::arg("softcap"),
        py::arg("sinks"), py::arg("partial"), py::arg("dtype"), py::arg("options"));
  m.def("tree_attention_backward", &run_tree_attention_backward, py::arg("q"), py::arg("k"), py::arg("v"),
        py::arg("out"), py::arg("dout"), py::arg("lse"), py::arg("dlse"), py::arg("subtree_end"),
        py::arg("position_ids"), py::arg("plan"), py::arg("multiprocessors"), py::arg("query_index"),
        py::arg("query_start"), py::arg("key_start"), py::arg("scale"), py::arg("window"), py::arg("softcap"),
        py::arg("sinks"), py::arg("dout_operand"), py::arg("dq"), py::arg("dk"), py::arg("dv"), py::arg("dtype"),
        py::arg("options"));
}

}  // namespace regrow::emulator
