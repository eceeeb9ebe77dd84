// What regrow.explain reads: the tables that the CUDA kernels and their planner use, and a plan's work in numbers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>

#include "kernels/attention_plan.h"
#include "kernels/attention_tiling.h"
#include "platform/check.h"
#include "tree/plan.h"

namespace py = pybind11;

namespace regrow {
namespace {

py::list forward_configurations() {
  py::list all;
  for (const ForwardConfiguration& c : kForwardConfigurations) {
    py::dict d;
    d["head_dim"] = c.head_dim;
    d["rows"] = c.rows;
    d["row_warps"] = c.row_warps;
    d["key_warps"] = c.key_warps();
    d["blocks"] = c.blocks;
    d["shared_bytes"] = c.shared_bytes();
    d["key_tile"] = kKeyTile;
    d["reason"] = c.reason;
    all.append(d);
  }
  return all;
}

py::list backward_configurations() {
  py::list all;
  for (const BackwardConfiguration& c : kBackwardConfigurations) {
    py::dict d;
    d["head_dim"] = c.head_dim;
    d["rows"] = kBackwardRows;
    d["keys"] = c.keys;
    d["column_warps"] = c.column_warps;
    d["warps"] = kBackwardThreads / 32;
    d["stages"] = c.stages;
    all.append(d);
  }
  return all;
}

py::dict class_of_device(int compute_capability, int multiprocessors) {
  const DeviceClass& c = device_class(compute_capability, multiprocessors);
  py::dict d;
  d["name"] = c.name;
  d["matmul_per_clock"] = c.matmul_per_clock;
  d["floats_per_clock"] = c.floats_per_clock;
  d["l2_bytes_per_clock"] = c.l2_bytes_per_clock;
  d["shared_bytes"] = c.shared_bytes;
  return d;
}

py::dict clocks_of_tile(int64_t head_dim, int rows, int compute_capability, int multiprocessors) {
  const int at = find_configuration(padded_head_dim(head_dim), rows);
  CHECK(at >= 0, "no configuration for head dim ", head_dim, " has ", rows, " rows: leave them to the planner");
  const TileClocks t = tile_clocks(kForwardConfigurations[at], device_class(compute_capability, multiprocessors));
  py::dict d;
  d["products"] = t.products;
  d["operands"] = t.operands;
  d["keys"] = t.keys;
  d["softmax"] = t.softmax;
  d["resident"] = t.resident;
  d["copy_latency"] = kCopyLatency;
  py::list with_blocks;
  for (int blocks = 1; blocks <= t.resident; ++blocks) with_blocks.append(t.with_blocks(blocks));
  d["with_blocks"] = with_blocks;
  d["alone"] = t.alone();
  return d;
}

// (queries of a tile, keys of a tile, items, min_tiles, heads of a tile)
py::tuple tiles_for_cuda(int64_t query_heads, int64_t kv_heads, int rows, int multiprocessors) {
  const TileShape t = cuda_tiles(query_heads, kv_heads, rows, multiprocessors);
  return py::make_tuple(t.queries, t.keys, t.items, t.min_tiles, heads_of_tile(query_heads / kv_heads, rows));
}

// (queries of a tile, keys of a tile, items, min_tiles, common_cuts) of the backward
py::tuple backward_tiles_for_cuda(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int multiprocessors) {
  const TileShape t = cuda_backward_tiles(query_heads, kv_heads, padded_head_dim(head_dim), multiprocessors);
  return py::make_tuple(t.queries, t.keys, t.items, t.min_tiles, t.common_cuts);
}

using Words = py::array_t<int32_t, py::array::c_style>;

PlanView checked(const Words& words) {
  const PlanView plan(words.data());
  CHECK(words.size() >= int64_t(sizeof(PlanHeader) / 4) && plan.header().magic == kPlanMagic &&
            plan.header().num_words == words.size(),
        "this is no plan: make one with regrow.plan(tree, ...)");
  return plan;
}

py::dict sizes_of(const PlanHeader& h) {
  py::dict d;
  d["num_queries"] = h.num_queries;
  d["num_keys"] = h.num_keys;
  d["num_unseen"] = h.num_unseen;
  d["query_tile"] = h.query_tile;
  d["key_tile"] = h.key_tile;
  d["num_query_tiles"] = h.num_query_tiles;
  return d;
}

// The backward's items in their order, which is that of the tickets reversed: each walks runs [run_begin, run_end) of
// query tiles [begin, end).
py::dict plan_backward_work(const Words& words) {
  const PlanView whole = checked(words);
  const int32_t own = whole.header().backward_plan;
  const PlanView plan = own ? PlanView(whole.words() + own) : whole;
  const PlanHeader& h = plan.header();
  int32_t num_runs = 0;
  py::array_t<int32_t> items({py::ssize_t(h.num_backward_items), py::ssize_t(3)});
  for (int i = 0; i < h.num_backward_items; ++i) {
    const BackwardItem& item = plan.backward_items()[i];
    items.mutable_at(i, 0) = item.key_tile;
    items.mutable_at(i, 1) = item.run_begin;
    items.mutable_at(i, 2) = item.run_end;
    num_runs = std::max(num_runs, item.run_end);
  }
  py::array_t<int32_t> runs({py::ssize_t(num_runs), py::ssize_t(3)});
  for (int r = 0; r < num_runs; ++r) {
    const TileRun& run = plan.backward_runs()[r];
    runs.mutable_at(r, 0) = run.begin;
    runs.mutable_at(r, 1) = run.end;
    runs.mutable_at(r, 2) = run.partial;
  }
  py::dict d = sizes_of(h);
  d["items"] = items;
  d["runs"] = runs;
  d["num_key_tiles"] = h.num_key_tiles;
  return d;
}

// The forward's items in their order, and what becomes of them.
py::dict plan_work(const Words& words) {
  const PlanView plan = checked(words);
  const PlanHeader& h = plan.header();
  py::array_t<int32_t> tiles(h.num_forward_items), query_tile(h.num_forward_items), pieces(h.num_merges);
  int64_t partial = 0;
  for (int i = 0; i < h.num_forward_items; ++i) {
    const ForwardItem& item = plan.forward_items()[i];
    int32_t count = 0;
    for (int r = item.run_begin; r < item.run_end; ++r) {
      const TileRun& run = plan.forward_runs()[r];
      count += run.end - run.begin;
      if (run.partial) partial += run.end - run.begin;
    }
    tiles.mutable_at(i) = count;
    query_tile.mutable_at(i) = item.query_tile;
  }
  for (int i = 0; i < h.num_merges; ++i) pieces.mutable_at(i) = plan.merges()[i].slot_end - plan.merges()[i].slot_begin;
  py::dict d = sizes_of(h);
  d["item_tiles"] = tiles;
  d["item_query_tile"] = query_tile;
  d["merge_pieces"] = pieces;
  d["partial_tiles"] = partial;
  d["items"] = h.items;
  d["min_tiles"] = h.min_tiles;
  return d;
}

}  // namespace

void bind_performance(py::module_& m) {
  m.def("forward_configurations", &forward_configurations);
  m.def("device_class", &class_of_device, py::arg("compute_capability"), py::arg("multiprocessors"));
  m.def("tile_clocks", &clocks_of_tile, py::arg("head_dim"), py::arg("rows"), py::arg("compute_capability"),
        py::arg("multiprocessors"));
  m.def("cuda_tiles", &tiles_for_cuda, py::arg("query_heads"), py::arg("kv_heads"), py::arg("rows"),
        py::arg("multiprocessors"));
  m.def("backward_configurations", &backward_configurations);
  m.def("cuda_backward_tiles", &backward_tiles_for_cuda, py::arg("query_heads"), py::arg("kv_heads"),
        py::arg("head_dim"), py::arg("multiprocessors"));
  m.def("plan_backward_work", &plan_backward_work, py::arg("words"));
  m.def("plan_work", &plan_work, py::arg("words"));
}

}  // namespace regrow
