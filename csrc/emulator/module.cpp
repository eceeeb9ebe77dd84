#include <pybind11/pybind11.h>

#include "emulator/runs.h"
#include "platform/check.h"

namespace regrow::emulator {
namespace {

Options make_options(const std::string& order, const std::string& landing, uint64_t seed, const std::string& skip) {
  CHECK(order == "forward" || order == "reverse" || order == "shuffled", "order is ", order,
        ", must be forward, reverse or shuffled");
  CHECK(landing == "issue" || landing == "wait", "landing is ", landing, ", must be issue or wait");
  return {.order = order == "forward" ? Order::kForward : (order == "reverse" ? Order::kReverse : Order::kShuffled),
          .landing = landing == "issue" ? Landing::kIssue : Landing::kWait,
          .seed = seed,
          .skip = skip};
}

}  // namespace
}  // namespace regrow::emulator

PYBIND11_MODULE(regrow_emulator, m) {
  using namespace regrow::emulator;
  py::register_exception<Failure>(m, "Failure", PyExc_RuntimeError);
  py::class_<Options>(m, "Options")
      .def(py::init(&make_options), py::kw_only(), py::arg("order") = "forward", py::arg("landing") = "wait",
           py::arg("seed") = 0, py::arg("skip") = "")
      .def_readwrite("skip", &Options::skip);
  py::class_<Report>(m, "Report")
      .def_readonly("sync_points", &Report::sync_points)
      .def_readonly("instructions", &Report::instructions)
      .def_readonly("async_copies", &Report::async_copies)
      .def_readonly("bank_conflicts", &Report::bank_conflicts);
  bind_attention(m);
  bind_kernels(m);
  bind_probes(m);
}
