#pragma once

// The one place that launches kernels. For files that nvcc compiles.
#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "platform/check.h"
#include "platform/device.h"

namespace regrow::cuda {

// Throws std::runtime_error, since no other argument would help: "lse_merge: ... (cudaErrorNoDevice)".
template <class... Context>
void check_cuda(cudaError_t error, const Context&... context) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next caller would take this error for its own
  throw std::runtime_error(message(context..., ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

// Launches the kernel that a dispatch_* function of csrc/kernels chooses: launch(shape, kernel, params...).
class Launcher {
 public:
  Launcher(const char* name, cudaStream_t stream) : name_(name), stream_(stream) {}

  template <class... Params>
  void operator()(const LaunchShape& shape, void (*kernel)(Params...),
                  const std::type_identity_t<Params>&... params) const {
    constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
    constexpr int kMaxBlocksY = 65535, kMaxThreads = 1024;
    CHECK(shape.blocks > 0 && shape.blocks <= kMaxBlocks && shape.blocks_y > 0 && shape.blocks_y <= kMaxBlocksY &&
              shape.threads > 0 && shape.threads <= kMaxThreads,
          description(shape), ": a grid has 1 to ", kMaxBlocks, " x ", kMaxBlocksY, " blocks of 1 to ", kMaxThreads,
          " threads: split the call over rows, or over columns for the second number");
    const void* function = reinterpret_cast<const void*>(kernel);
    constexpr int kBytesWithoutAsking = 48 << 10;
    if (shape.shared_bytes > kBytesWithoutAsking)
      check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes),
                 description(shape));
    void* arguments[] = {const_cast<void*>(static_cast<const void*>(&params))...};
    check_cuda(cudaLaunchKernel(function, dim3(unsigned(shape.blocks), unsigned(shape.blocks_y)),
                                dim3(unsigned(shape.threads)), arguments, size_t(shape.shared_bytes), stream_),
               description(shape));
  }

 private:
  // "lse_merge of 5 x 1 blocks, 128 threads, 0 bytes of shared memory"
  std::string description(const LaunchShape& shape) const {
    return message(name_, " of ", shape.blocks, " x ", shape.blocks_y, " blocks, ", shape.threads, " threads, ",
                   shape.shared_bytes, " bytes of shared memory");
  }

  const char* name_;
  cudaStream_t stream_;
};

}  // namespace regrow::cuda
