#include <pybind11/pybind11.h>

namespace regrow {
void bind_trie(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_performance(pybind11::module_& m);
}  // namespace regrow

PYBIND11_MODULE(_C, m) {
  regrow::bind_trie(m);
  regrow::bind_plan(m);
  regrow::bind_performance(m);
}
