// Merges partial attention results on the GPU, with regrow's headers, the CUDA runtime and nothing else.
//
//     nvcc -std=c++20 -O3 -arch=native -I csrc examples/merge_partials.cu -o merge_partials && ./merge_partials
//
// Three calls of attention have seen three disjoint sets of keys. Each left out [Tq, Hq, Dv], normalised over its own
// keys, and lse [Hq, Tq], the log of its sum of weights; what they would have found together is a softmax over their
// lse.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "kernels/lse_merge.cuh"

using namespace regrow;

namespace {

constexpr int64_t kPartials = 3, kQueries = 1000;
constexpr int kHeads = 8, kDim = 128;

// Memory of the device that holds these values, or as many unwritten ones.
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    cuda::check_cuda(cudaMalloc(&data_, size * sizeof(float)), "cudaMalloc of ", size, " floats");
  }
  explicit DeviceArray(const std::vector<float>& values) : DeviceArray(values.size()) {
    cuda::check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(float), cudaMemcpyHostToDevice), "copy to device");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;

  float* data() const { return data_; }
  std::vector<float> to_host() const {  // waits for the kernel, whose errors appear here
    std::vector<float> values(size_);
    cuda::check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(float), cudaMemcpyDeviceToHost), "copy to host");
    return values;
  }

 private:
  size_t size_;
  float* data_ = nullptr;
};

std::vector<float> random_values(size_t size, float scale) {
  static std::mt19937 generator(0);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(generator);
  return values;
}

// The largest difference between `out` and `lse` and the same merge in a plain loop, in double.
double largest_error(const std::vector<float>& outs, const std::vector<float>& lses, const std::vector<float>& out,
                     const std::vector<float>& lse) {
  double largest = 0;
  for (int64_t query = 0; query < kQueries; ++query)
    for (int head = 0; head < kHeads; ++head) {
      double weight[kPartials], sum = 0;
      for (int64_t i = 0; i < kPartials; ++i)
        sum += weight[i] = std::exp(double(lses[(i * kHeads + head) * kQueries + query]));
      largest = std::fmax(largest, std::fabs(std::log(sum) - lse[head * kQueries + query]));
      for (int column = 0; column < kDim; ++column) {
        double expected = 0;
        for (int64_t i = 0; i < kPartials; ++i)
          expected += weight[i] / sum * outs[((i * kQueries + query) * kHeads + head) * kDim + column];
        largest = std::fmax(largest, std::fabs(expected - out[(query * kHeads + head) * kDim + column]));
      }
    }
  return largest;
}

void run() {
  const size_t lse_size = kHeads * kQueries, out_size = lse_size * kDim;
  const std::vector<float> outs = random_values(kPartials * out_size, 1), lses = random_values(kPartials * lse_size, 4);
  const DeviceArray device_outs(outs), device_lses(lses), device_out(out_size), device_lse(lse_size);

  const LseMergeParams params = {.outs = device_outs.data(),
                                 .lses = device_lses.data(),
                                 .sinks = nullptr,
                                 .dtype = DType::kFloat32,
                                 .num_partials = kPartials,
                                 .num_queries = kQueries,
                                 .heads = kHeads,
                                 .value_dim = kDim,
                                 .out = device_out.data(),
                                 .lse = device_lse.data()};
  dispatch_lse_merge(params, cuda::Launcher("lse_merge", /*stream=*/nullptr));

  const double error = largest_error(outs, lses, device_out.to_host(), device_lse.to_host());
  std::printf("%lld queries x %d heads from %lld partials: largest error %.1e\n", (long long)kQueries, kHeads,
              (long long)kPartials, error);
  if (!(error < 1e-5)) throw std::runtime_error("the merge is wrong");
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
