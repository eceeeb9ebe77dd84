#include <algorithm>
#include <cstring>
#include <numeric>

#include "emulator/runs.h"
#include "kernels/logits_row_grad.cuh"
#include "kernels/logits_rows.cuh"
#include "kernels/lse_merge.cuh"
#include "kernels/lse_merge_backward.cuh"
#include "kernels/replay_gather.cuh"
#include "kernels/replay_scatter.cuh"
#include "kernels/tile_matmul.cuh"
#include "platform/check.h"

namespace regrow::emulator {

py::array poisoned_like(const py::array& like, std::vector<py::ssize_t> sizes) {
  py::array array(like.dtype(), std::move(sizes));
  std::memset(array.mutable_data(), 0xff, size_t(array.nbytes()));
  return array;
}

DType dtype_named(const std::string& wanted) {
  for (int i = 0; i <= int(DType::kUInt8); ++i)
    if (wanted == name(DType(i))) return DType(i);
  CHECK(false, "no dtype is called ", wanted);
  return {};
}

namespace {

py::tuple run_lse_merge(const py::array& outs, const py::array& lses, const std::optional<py::array>& sinks,
                        const std::string& dtype, const Options& options) {
  CHECK(outs.ndim() == 4 && lses.ndim() == 3, "outs must be [P, Tq, Hq, Dv], lses [P, Hq, Tq]");
  py::array out = poisoned_like(outs, {outs.shape(1), outs.shape(2), outs.shape(3)});
  py::array lse = poisoned_like(outs, {outs.shape(2), outs.shape(1)});
  GlobalMemory memory;
  add_input(memory, "outs", outs);
  add_input(memory, "lses", lses);
  if (sinks) add_input(memory, "sinks", *sinks);
  add_output(memory, "out", out);
  add_output(memory, "lse", lse);
  Report report;
  dispatch_lse_merge({.outs = outs.data(),
                      .lses = lses.data(),
                      .sinks = sinks ? sinks->data() : nullptr,
                      .dtype = dtype_named(dtype),
                      .num_partials = outs.shape(0),
                      .num_queries = outs.shape(1),
                      .heads = int(outs.shape(2)),
                      .value_dim = int(outs.shape(3)),
                      .out = out.mutable_data(),
                      .lse = lse.mutable_data()},
                     launcher(memory, options, report));
  return py::make_tuple(out, lse, report);
}

// Two launches; the report, and `skip`, are of the second one, which sums dsinks.
py::tuple run_lse_merge_backward(const py::array& dout, const std::optional<py::array>& dlse, const py::array& outs,
                                 const py::array& lses, const std::optional<py::array>& sinks, const py::array& out,
                                 const py::array& lse, const std::string& dtype, const Options& options) {
  CHECK(outs.ndim() == 4 && lses.ndim() == 3, "outs must be [P, Tq, Hq, Dv], lses [P, Hq, Tq]");
  py::array douts = poisoned_like(outs, {outs.shape(0), outs.shape(1), outs.shape(2), outs.shape(3)});
  py::array dlses = poisoned_like(outs, {outs.shape(0), outs.shape(2), outs.shape(1)});
  py::array dsinks = poisoned_like(outs, {sinks ? outs.shape(2) : 0});
  py::array sink_terms = poisoned_like(outs, {outs.shape(2), outs.shape(1)});
  LseMergeBackwardParams p;
  p.outs = outs.data();
  p.lses = lses.data();
  p.sinks = sinks ? sinks->data() : nullptr;
  p.dtype = dtype_named(dtype);
  p.num_partials = outs.shape(0);
  p.num_queries = outs.shape(1);
  p.heads = int(outs.shape(2));
  p.value_dim = int(outs.shape(3));
  p.out = const_cast<void*>(out.data());
  p.lse = const_cast<void*>(lse.data());
  p.dout = dout.data();
  p.dlse = dlse ? dlse->data() : nullptr;
  p.douts = douts.mutable_data();
  p.dlses = dlses.mutable_data();
  p.dsinks = sinks ? dsinks.mutable_data() : nullptr;
  p.sink_terms = sinks ? sink_terms.mutable_data() : nullptr;

  GlobalMemory memory;
  add_input(memory, "dout", dout);
  if (dlse) add_input(memory, "dlse", *dlse);
  add_input(memory, "outs", outs);
  add_input(memory, "lses", lses);
  if (sinks) add_input(memory, "sinks", *sinks);
  add_input(memory, "out", out);
  add_input(memory, "lse", lse);
  add_output(memory, "douts", douts);
  add_output(memory, "dlses", dlses);
  if (sinks) add_output(memory, "sink_terms", sink_terms);
  Options without_points = options;
  without_points.skip.clear();  // its warps share nothing
  Report report;
  dispatch_lse_merge_backward(p, launcher(memory, without_points, report));

  GlobalMemory sink_memory;
  add_input(sink_memory, "sink_terms", sink_terms);
  add_output(sink_memory, "dsinks", dsinks);
  Report sink_report;
  dispatch_lse_merge_dsinks(p, launcher(sink_memory, options, sink_report));
  return py::make_tuple(douts, dlses, dsinks, sink_report);
}

py::tuple run_replay_gather(const py::array& src, const Array<int64_t>& index, const Options& options) {
  CHECK(src.ndim() == 2 && src.strides(1) == src.itemsize(), "src must be [rows, row] with dense rows");
  py::array out = poisoned_like(src, {index.size(), src.shape(1)});
  GlobalMemory memory;
  const int64_t extent = src.shape(0) ? (src.shape(0) - 1) * src.strides(0) + src.shape(1) * src.itemsize() : 0;
  const int cell_bytes = src.strides(0) % 4 || out.nbytes() % 4 || out.strides(0) % 4 ? 1 : 4;
  memory.add("src", src.data(), extent, cell_bytes, false);
  add_input(memory, "index", index);
  memory.add("out", out.data(), out.nbytes(), cell_bytes, true);
  Report report;
  dispatch_replay_gather({.src = src.data(),
                          .index = index.data(),
                          .out = out.mutable_data(),
                          .num_src_rows = src.shape(0),
                          .num_rows = index.size(),
                          .src_stride = src.strides(0),
                          .row_bytes = src.shape(1) * src.itemsize()},
                         launcher(memory, options, report));
  return py::make_tuple(out, report);
}

// start [num_rows + 1] and order [num_src_rows] of ScatterParams, as a sort and a search would make them of any values.
std::pair<Array<int64_t>, Array<int64_t>> sorted_sources(const Array<int64_t>& index, int64_t num_rows) {
  std::vector<int64_t> order(index.size()), start(num_rows + 1);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return index.at(a) < index.at(b); });
  for (int64_t row = 0; row <= num_rows; ++row)
    start[row] = std::count_if(index.data(), index.data() + index.size(), [&](int64_t i) { return i < row; });
  return {Array<int64_t>(start.size(), start.data()), Array<int64_t>(order.size(), order.data())};
}

py::tuple run_replay_scatter(const py::array& src, const Array<int64_t>& index, int64_t num_rows,
                             const std::string& dtype, const Options& options) {
  CHECK(src.ndim() == 2 && src.shape(0) == index.size(), "src must be [rows, row], index [rows]");
  py::array out = poisoned_like(src, {num_rows, src.shape(1)});
  const auto [start, order] = sorted_sources(index, num_rows);
  GlobalMemory memory;
  add_input(memory, "src", src);
  add_input(memory, "start", start);
  add_input(memory, "order", order);
  add_output(memory, "out", out);
  Report report;
  dispatch_replay_scatter({.src = src.data(),
                           .start = start.data(),
                           .order = order.data(),
                           .out = out.mutable_data(),
                           .num_src_rows = src.shape(0),
                           .num_rows = num_rows,
                           .src_stride = src.shape(1),
                           .row_size = src.shape(1),
                           .dtype = dtype_named(dtype)},
                          launcher(memory, options, report));
  return py::make_tuple(out, report);
}

// lse and entropy of each row of `logits`, and the log-probs of the targets.
py::tuple run_logits(const py::array& logits, const Array<int64_t>& target_row, const Array<int64_t>& target_token,
                     const std::string& dtype, double temperature, double softcap, const Options& options) {
  CHECK(logits.ndim() == 2, "logits must be [rows, vocabulary]");
  const py::array like = dtype == "float64" ? py::array(Array<double>(1)) : py::array(Array<float>(1));
  py::array lse = poisoned_like(Array<double>(1), {logits.shape(0)}), entropy = poisoned_like(like, {logits.shape(0)});
  py::array logp = poisoned_like(like, {target_row.size()});
  const LogitsParams rows = {.logits = const_cast<void*>(logits.data()),
                             .dtype = dtype_named(dtype),
                             .num_rows = logits.shape(0),
                             .vocabulary = logits.shape(1),
                             .row_stride = logits.shape(1),
                             .temperature = temperature,
                             .softcap = softcap,
                             .lse = static_cast<double*>(lse.mutable_data()),
                             .entropy = entropy.mutable_data()};
  GlobalMemory memory;
  add_input(memory, "logits", logits);
  add_output(memory, "lse", lse);
  add_output(memory, "entropy", entropy);
  Report report;
  dispatch_logits_row_stats(rows, launcher(memory, options, report));

  GlobalMemory pick_memory;
  add_input(pick_memory, "logits", logits);
  add_input(pick_memory, "lse", lse);
  add_input(pick_memory, "target_row", target_row);
  add_input(pick_memory, "target_token", target_token);
  add_output(pick_memory, "logp", logp);
  Options pick_options = options;
  pick_options.skip.clear();  // it has no synchronisation point
  Report pick_report;
  dispatch_logits_pick({.rows = rows,
                        .target_row = target_row.data(),
                        .target_token = target_token.data(),
                        .num_targets = target_row.size(),
                        .logp = logp.mutable_data()},
                       launcher(pick_memory, pick_options, pick_report));
  return py::make_tuple(lse, entropy, logp, report);
}

// `logits` [rows, vocabulary] of any row stride become their gradient in a copy, which is returned with its gaps.
py::tuple run_logits_row_grad(const py::array& logits, const Array<double>& lse, const py::array& entropy,
                              const Array<int64_t>& row_start, const Array<int64_t>& target_token,
                              const py::array& dlogp, const std::optional<py::array>& dentropy, int64_t vocabulary,
                              const std::string& dtype, double temperature, double softcap, const Options& options) {
  CHECK(logits.ndim() == 2 && logits.shape(1) >= vocabulary, "logits must be [rows, vocabulary and a gap]");
  py::array gradient = poisoned_like(logits, {logits.shape(0), logits.shape(1)});
  std::memcpy(gradient.mutable_data(), logits.data(), size_t(logits.nbytes()));
  GlobalMemory memory;
  add_output(memory, "logits", gradient);
  add_input(memory, "lse", lse);
  add_input(memory, "entropy", entropy);
  add_input(memory, "row_start", row_start);
  add_input(memory, "target_token", target_token);
  add_input(memory, "dlogp", dlogp);
  if (dentropy) add_input(memory, "dentropy", *dentropy);
  Report report;
  dispatch_logits_row_grad({.rows = {.logits = gradient.mutable_data(),
                                     .dtype = dtype_named(dtype),
                                     .num_rows = logits.shape(0),
                                     .vocabulary = vocabulary,
                                     .row_stride = logits.shape(1),
                                     .temperature = temperature,
                                     .softcap = softcap,
                                     .lse = const_cast<double*>(lse.data()),
                                     .entropy = const_cast<void*>(entropy.data())},
                            .row_start = row_start.data(),
                            .target_token = target_token.data(),
                            .num_targets = target_token.size(),
                            .dlogp = dlogp.data(),
                            .dentropy = dentropy ? dentropy->data() : nullptr},
                           launcher(memory, options, report));
  return py::make_tuple(gradient, report);
}

py::tuple run_tile_matmul(const Array<uint16_t>& a, const Array<uint16_t>& b, const std::string& dtype,
                          bool transpose_b, const Options& options) {
  TileMatmulParams p;
  p.m = int(a.shape(0));
  p.k = int(a.shape(1));
  p.n = int(b.shape(transpose_b ? 0 : 1));
  CHECK(b.shape(transpose_b ? 1 : 0) == p.k && p.n % 64 == 0 && p.k % 64 == 0, "n and k must be multiples of 64");
  Array<float> out({py::ssize_t(p.m), py::ssize_t(p.n)});
  std::memset(out.mutable_data(), 0xff, size_t(out.nbytes()));
  p.a = a.data();
  p.b = b.data();
  p.out = out.mutable_data();
  p.a_stride = p.k;
  p.b_stride = int(b.shape(1));
  GlobalMemory memory;
  add_input(memory, "a", a);
  add_input(memory, "b", b);
  add_output(memory, "out", out);
  Report report;
  const auto run = [&](auto config) {
    using Config = decltype(config);
    const LaunchShape shape = {.blocks = (p.m + Config::kTile - 1) / Config::kTile,
                               .blocks_y = p.n / Config::kTile,
                               .threads = Config::kThreads,
                               .shared_bytes = sizeof(typename Config::Smem)};
    launcher(memory, options, report)(shape, &tile_matmul<Config>, p);
  };
  if (dtype_named(dtype) == DType::kBFloat16)
    transpose_b ? run(TileMatmulConfig<bf16, true>()) : run(TileMatmulConfig<bf16, false>());
  else
    transpose_b ? run(TileMatmulConfig<fp16, true>()) : run(TileMatmulConfig<fp16, false>());
  return py::make_tuple(out, report);
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("lse_merge", &run_lse_merge, py::arg("outs"), py::arg("lses"), py::arg("sinks"), py::arg("dtype"),
        py::arg("options"));
  m.def("lse_merge_backward", &run_lse_merge_backward, py::arg("dout"), py::arg("dlse"), py::arg("outs"),
        py::arg("lses"), py::arg("sinks"), py::arg("out"), py::arg("lse"), py::arg("dtype"), py::arg("options"));
  m.def("replay_gather", &run_replay_gather, py::arg("src"), py::arg("index"), py::arg("options"));
  m.def("replay_scatter", &run_replay_scatter, py::arg("src"), py::arg("index"), py::arg("num_rows"), py::arg("dtype"),
        py::arg("options"));
  m.def("logits", &run_logits, py::arg("logits"), py::arg("target_row"), py::arg("target_token"), py::arg("dtype"),
        py::arg("temperature"), py::arg("softcap"), py::arg("options"));
  m.def("logits_row_grad", &run_logits_row_grad, py::arg("logits"), py::arg("lse"), py::arg("entropy"),
        py::arg("row_start"), py::arg("target_token"), py::arg("dlogp"), py::arg("dentropy"), py::arg("vocabulary"),
        py::arg("dtype"), py::arg("temperature"), py::arg("softcap"), py::arg("options"));
  m.def("tile_matmul", &run_tile_matmul, py::arg("a"), py::arg("b"), py::arg("dtype"), py::arg("transpose_b"),
        py::arg("options"));
}

}  // namespace regrow::emulator
