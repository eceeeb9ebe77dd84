#pragma once

// Checks that several ops make of their tensors.

#include <initializer_list>
#include <utility>

#include "ops/tensors.h"

namespace regrow::ops {

// "cuda:1"
inline std::string device_name(const Tensor& t) {
  if (t.is_cpu()) return "cpu";
  return t.is_cuda() ? "cuda:" + std::to_string(t.get_device_index()) : "a device of another kind";
}

// The dispatcher chooses the op by some of its tensors; all must lie where the first one does.
inline void check_one_device(std::initializer_list<std::pair<const char*, const Tensor*>> named) {
  const auto& [first, like] = *named.begin();
  CHECK(like->is_cpu() || like->is_cuda(), first, " must be on the CPU or on CUDA, got ", device_name(*like));
  for (const auto& [what, t] : named)
    CHECK(!t || device_name(*t) == device_name(*like), first, " is on ", device_name(*like), " and ", what, " on ",
          device_name(*t), ": move them to one device with .to(device)");
}

inline const Tensor* pointer(const std::optional<Tensor>& t) { return t ? &*t : nullptr; }

inline void check_same_shape(const Tensor& t, std::initializer_list<int64_t> sizes, const char* what) {
  bool same = t.dim() == int64_t(sizes.size());
  int64_t d = 0;
  std::string expected;
  for (const int64_t size : sizes) {
    same = same && t.size(d) == size;
    expected += (d++ ? ", " : "") + std::to_string(size);
  }
  CHECK(same, what, " must have shape [", expected, "], got ", shape(t));
}

inline void check_sinks(const std::optional<Tensor>& sinks, int64_t heads, ScalarType dtype) {
  if (!sinks) return;
  check_same_shape(*sinks, {heads}, "sinks");
  CHECK(sinks->scalar_type() == dtype && sinks->is_contiguous(),
        "sinks must be contiguous and of the accumulation dtype (float32; float64 for float64 inputs)");
}

}  // namespace regrow::ops
