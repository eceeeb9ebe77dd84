#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "emulator/launch.h"
#include "kernels/dtype.h"

// Kernels on numpy arrays, as tests call them. 16-bit floats come as uint16 beside the name of their dtype. Outputs
// are poisoned with NaN before the launch.
namespace regrow::emulator {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

py::array poisoned_like(const py::array& like, std::vector<py::ssize_t> sizes);
DType dtype_named(const std::string& name);

inline void add_input(GlobalMemory& memory, const char* name, const py::array& array) {
  memory.add(name, array.data(), array.nbytes(), int(array.itemsize()), false);
}

inline void add_output(GlobalMemory& memory, const char* name, py::array& array) {
  memory.add(name, array.data(), array.nbytes(), int(array.itemsize()), true);
}

// A launcher for the dispatch functions of the kernels: launch(shape, kernel, arguments...).
inline auto launcher(GlobalMemory& memory, const Options& options, Report& report) {
  return [&memory, &options, &report](const LaunchShape& shape, auto kernel, const auto&... arguments) {
    report = launch(shape, memory, options, [&] { kernel(arguments...); });
  };
}

void bind_attention(py::module_& m);
void bind_kernels(py::module_& m);
void bind_probes(py::module_& m);

}  // namespace regrow::emulator
