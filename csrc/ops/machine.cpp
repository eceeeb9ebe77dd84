// What the machine is and what it can do, for tests and benchmarks.
#include <torch/csrc/stable/library.h>

#include <atomic>
#include <limits>

#include "cpu/kernel_table.h"
#include "ops/tensors.h"

namespace regrow::ops {
namespace {

std::string cpu_isa(const std::string& name) {
  if (!name.empty()) cpu::select_isa(name);
  return cpu::kernels().isa;
}

int64_t register_loop(const Tensor& like, int64_t iterations) {
  const DType dtype = floating_dtype(like, "like");
  std::atomic<int64_t> operations{0};
  executor(std::numeric_limits<int64_t>::max()).run([&](int) {
    operations += cpu::kernels().register_loop(dtype, iterations);
  });
  return operations;
}

}  // namespace
}  // namespace regrow::ops

STABLE_TORCH_LIBRARY_IMPL(regrow, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&regrow::ops::cpu_isa));
  m.impl("register_loop", TORCH_BOX(&regrow::ops::register_loop));
}
