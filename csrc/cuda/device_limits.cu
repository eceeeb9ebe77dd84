#include <map>
#include <mutex>

#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace regrow::cuda {
namespace {

DeviceLimits read_limits(int device) {
  const auto read = [device](cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "attribute ", int(attribute), " of CUDA device ",
               device);
    return value;
  };
  return {.compute_capability = 10 * read(cudaDevAttrComputeCapabilityMajor) + read(cudaDevAttrComputeCapabilityMinor),
          .multiprocessors = read(cudaDevAttrMultiProcessorCount),
          .shared_bytes_per_block = read(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .shared_bytes_per_multiprocessor = read(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
}

}  // namespace

void make_current(int device) { check_cuda(cudaSetDevice(device), "choosing CUDA device ", device); }

DeviceLimits device_limits(int device) {
  static std::mutex mutex;
  static std::map<int, DeviceLimits> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!known.count(device)) known[device] = read_limits(device);
  return known[device];
}

}  // namespace regrow::cuda
