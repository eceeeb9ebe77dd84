#pragma once

// Ops of torch that its stable headers do not wrap, through the dispatcher, at the schemas of torch 2.10: later
// versions of torch adapt the calls.

#include <array>
#include <utility>

#include "ops/tensors.h"

namespace regrow::ops::aten {

template <size_t kArguments>
void call(const char* name, const char* overload, std::array<StableIValue, kArguments>& stack) {
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
}

using torch::stable::detail::from;
using torch::stable::detail::to;

// Values in ascending order, and where each was; equal ones keep their order.
inline std::pair<Tensor, Tensor> stable_sort(const Tensor& t) {
  std::array<StableIValue, 4> stack = {from(t), from(std::optional<bool>(true)), from(int64_t(-1)), from(false)};
  call("aten::sort", "stable", stack);
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

// 0 .. size - 1 in the dtype and on the device of `like`. (aten::arange takes Scalars, which cannot be handed over.)
inline Tensor arange(const Tensor& like, int64_t size) {
  Tensor steps = torch::stable::new_zeros(like, {size});
  Tensor ones = torch::stable::narrow(steps, 0, 1, size - 1);
  torch::stable::fill_(ones, 1);
  std::array<StableIValue, 3> stack = {from(steps), from(int64_t(0)), from(std::nullopt)};
  call("aten::cumsum", "", stack);
  return to<Tensor>(stack[0]);
}

// For each of `values` the number of entries of `sorted` below it, int64.
inline Tensor searchsorted(const Tensor& sorted, const Tensor& values) {
  std::array<StableIValue, 6> stack = {from(sorted), from(values),       from(false),
                                       from(false),  from(std::nullopt), from(std::nullopt)};
  call("aten::searchsorted", "Tensor", stack);
  return to<Tensor>(stack[0]);
}

// A linear layer; without a bias, none.
inline Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  std::array<StableIValue, 3> stack = {from(input), from(weight), from(bias)};
  call("aten::linear", "", stack);
  return to<Tensor>(stack[0]);
}

// out = a b, summed in the dtype of out: fp32 for 16-bit floats. On CUDA only.
inline void matmul_into(const Tensor& a, const Tensor& b, const Tensor& out) {
  std::array<StableIValue, 4> stack = {from(a), from(b), from(out.scalar_type()), from(out)};
  call("aten::mm", "dtype_out", stack);
  to<Tensor>(stack[0]);  // out again, whose handle is ours to release
}

// out += a b, likewise. aten::addmm takes Scalars: python/regrow/logit_chunks.py calls it.
inline void add_matmul(const Tensor& a, const Tensor& b, const Tensor& out) {
  std::array<StableIValue, 3> stack = {from(out), from(a), from(b)};
  call("regrow::add_matmul_", "", stack);
}

}  // namespace regrow::ops::aten
