#pragma once

// Where work on a CUDA tensor goes.

#include <torch/csrc/stable/accelerator.h>

#include "cuda/kernels.h"
#include "ops/tensors.h"

// Of CUDA builds of torch only: null in its CPU build.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace regrow::ops {

// The stream that is current on the tensor's device; while this lives, that device is the current one. As an argument,
// cuda::lse_merge(p, CurrentStream(outs)), it lives until the call returns.
class CurrentStream {
 public:
  explicit CurrentStream(const Tensor& t) : device_((check_build(), t.get_device_index())) {
    cuda::make_current(t.get_device_index());
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream_));
  }

  operator cuda::Stream() const { return static_cast<cuda::Stream>(stream_); }

 private:
  static void check_build() {
    if (!aoti_torch_get_current_cuda_stream)
      throw std::runtime_error("this build of torch has no CUDA: install one that has");
  }

  torch::stable::accelerator::DeviceGuard device_;
  void* stream_ = nullptr;
};

}  // namespace regrow::ops
