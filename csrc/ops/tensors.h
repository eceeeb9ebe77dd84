#pragma once

// What every op needs of torch: checks, dtypes, the executor. Stable ABI only.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <string>

#include "cpu/executor.h"
#include "kernels/dtype.h"
#include "platform/check.h"

// Its name in the headers of torch 2.10.
#if !defined(STABLE_TORCH_ERROR_CODE_CHECK)
#define STABLE_TORCH_ERROR_CODE_CHECK TORCH_ERROR_CODE_CHECK
#endif

namespace regrow::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// "[3, 4]"
inline std::string shape(const Tensor& t) {
  std::string text = "[";
  for (int64_t d = 0; d < t.dim(); ++d) text += (d ? ", " : "") + std::to_string(t.size(d));
  return text + "]";
}

inline std::optional<DType> dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Double:
      return DType::kFloat64;
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::Long:
      return DType::kInt64;
    case ScalarType::Int:
      return DType::kInt32;
    case ScalarType::Short:
      return DType::kInt16;
    case ScalarType::Char:
      return DType::kInt8;
    case ScalarType::Byte:
      return DType::kUInt8;
    default:
      return std::nullopt;
  }
}

inline bool is_floating(DType dtype) { return dtype <= DType::kFloat16; }

inline DType floating_dtype(const Tensor& t, const char* what) {
  const auto dtype = dtype_of(t);
  CHECK(dtype && is_floating(*dtype), what, " must be float64, float32, bfloat16 or float16, got ",
        dtype ? name(*dtype) : "another dtype");
  return *dtype;
}

// fp64 for fp64, else fp32.
inline ScalarType accumulation_type(DType dtype) {
  return dtype == DType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

inline void check_integers(const Tensor& t, ScalarType dtype, const char* what) {
  CHECK(t.dim() == 1 && t.scalar_type() == dtype && t.is_contiguous(), what, " must be a contiguous 1-D ",
        dtype == ScalarType::Long ? "int64" : "int32", " tensor, got shape ", shape(t));
}

// Below this many operations waking the other threads costs more than it saves.
inline constexpr int64_t kSerialOperations = 1 << 20;

inline cpu::Executor executor(int64_t operations) {
  const int num_workers = operations < kSerialOperations ? 1 : int(torch::stable::get_num_threads());
  if (num_workers == 1) return {1, [](const std::function<void(int)>& body) { body(0); }};
  return {num_workers, [num_workers](const std::function<void(int)>& body) {
            torch::stable::parallel_for(0, num_workers, 1, [&](int64_t begin, int64_t end) {
              for (int64_t worker = begin; worker < end; ++worker) body(int(worker));
            });
          }};
}

// A matrix itself if its last dimension is dense.
inline Tensor with_contiguous_columns(const Tensor& t) {
  return t.numel() == 0 || t.size(1) == 1 || t.stride(1) == 1 ? t : torch::stable::contiguous(t);
}

// Allocated through torch, as float so that its fill of uninitialised memory with NaN applies.
inline Tensor workspace(const Tensor& like, int64_t bytes) {
  return torch::stable::new_empty(like, {(bytes + 3) / 4}, ScalarType::Float);
}

}  // namespace regrow::ops
