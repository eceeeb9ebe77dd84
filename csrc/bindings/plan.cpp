#include "tree/plan.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>

#include "kernels/attention_plan.h"

namespace py = pybind11;

namespace regrow {
namespace {

template <class T>
using Integers = py::array_t<T, py::array::c_style>;

// The arguments that say which rectangle, in order.
using OptionalIndex = std::optional<Integers<int64_t>>;

Rectangle rectangle_of(const Integers<int32_t>& subtree_end, const Integers<int64_t>& position_ids,
                       const OptionalIndex& query_index, int64_t query_start, int64_t num_queries, int64_t key_start,
                       int64_t num_keys, int64_t window) {
  Rectangle r;
  r.subtree_end = subtree_end.data();
  r.position_ids = position_ids.data();
  r.num_tokens = subtree_end.size();
  r.query_index = query_index && query_index->size() ? query_index->data() : nullptr;  // an empty one has no address
  r.query_start = query_start;
  r.num_queries = query_index ? query_index->size() : num_queries;
  r.key_start = key_start;
  r.num_keys = num_keys;
  r.window = window;
  return r;
}

py::array_t<int32_t> to_numpy(const std::vector<int32_t>& words) {
  py::array_t<int32_t> plan(py::ssize_t(words.size()));
  std::memcpy(plan.mutable_data(), words.data(), words.size() * sizeof(int32_t));
  return plan;
}

template <class Build>
auto without_gil(const Build& build) {
  const py::gil_scoped_release release;
  return build();
}

// A plan with tiles that no device asks for.
py::array_t<int32_t> build_tiled_plan(const Integers<int32_t>& subtree_end, const Integers<int64_t>& position_ids,
                                      const OptionalIndex& query_index, int64_t query_start, int64_t num_queries,
                                      int64_t key_start, int64_t num_keys, int64_t window, int queries, int keys,
                                      int items, int min_tiles, bool common_cuts) {
  const Rectangle r =
      rectangle_of(subtree_end, position_ids, query_index, query_start, num_queries, key_start, num_keys, window);
  return to_numpy(without_gil([&] { return build_plan(r, {queries, keys, items, min_tiles, common_cuts}); }));
}

py::array_t<int32_t> build_cpu_plan(const Integers<int32_t>& subtree_end, const Integers<int64_t>& position_ids,
                                    const OptionalIndex& query_index, int64_t query_start, int64_t num_queries,
                                    int64_t key_start, int64_t num_keys, int64_t window, int64_t query_heads,
                                    int64_t kv_heads) {
  const Rectangle r =
      rectangle_of(subtree_end, position_ids, query_index, query_start, num_queries, key_start, num_keys, window);
  return to_numpy(without_gil([&] { return build_plan(r, cpu_tiles(query_heads, kv_heads)); }));
}

// The rows of the configuration, and the plan's words.
std::pair<int, py::array_t<int32_t>> build_plan_for_cuda(
    const Integers<int32_t>& subtree_end, const Integers<int64_t>& position_ids, const OptionalIndex& query_index,
    int64_t query_start, int64_t num_queries, int64_t key_start, int64_t num_keys, int64_t window, int64_t query_heads,
    int64_t kv_heads, int64_t head_dim, int compute_capability, int multiprocessors, int rows) {
  const Rectangle r =
      rectangle_of(subtree_end, position_ids, query_index, query_start, num_queries, key_start, num_keys, window);
  const CudaPlanRequest request = {query_heads, kv_heads, head_dim, compute_capability, multiprocessors, rows};
  const CudaPlan plan = without_gil([&] { return build_cuda_plan(r, request); });
  return {plan.rows, to_numpy(plan.words)};
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("build_cpu_plan", &build_cpu_plan, py::arg("subtree_end"), py::arg("position_ids"), py::arg("query_index"),
        py::arg("query_start"), py::arg("num_queries"), py::arg("key_start"), py::arg("num_keys"), py::arg("window"),
        py::arg("query_heads"), py::arg("kv_heads"));
  m.def("build_tiled_plan", &build_tiled_plan, py::arg("subtree_end"), py::arg("position_ids"), py::arg("query_index"),
        py::arg("query_start"), py::arg("num_queries"), py::arg("key_start"), py::arg("num_keys"), py::arg("window"),
        py::arg("queries"), py::arg("keys"), py::arg("items"), py::arg("min_tiles"), py::arg("common_cuts") = false);
  m.def("build_cuda_plan", &build_plan_for_cuda, py::arg("subtree_end"), py::arg("position_ids"),
        py::arg("query_index"), py::arg("query_start"), py::arg("num_queries"), py::arg("key_start"),
        py::arg("num_keys"), py::arg("window"), py::arg("query_heads"), py::arg("kv_heads"), py::arg("head_dim"),
        py::arg("compute_capability"), py::arg("multiprocessors"), py::arg("rows") = 0);
}

}  // namespace regrow
