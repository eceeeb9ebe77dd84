#include "kernels/attention_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

#include "kernels/attention_tiling.h"
#include "platform/check.h"
#include "tree/plan.h"

namespace regrow {

double TileClocks::queued(int blocks) const {
  // Sums of r^i for i up to `blocks` and below it, r the shorter station over the longer: the mean of service times
  // that vary as an exponential distribution does.
  const double slow = std::max({products, operands, keys, softmax});
  const double r = std::min(softmax, std::max({products, operands, keys})) / slow;
  double sum = 0, power = 1;
  for (int i = 0; i < blocks; ++i, power *= r) sum += power;
  return slow * (sum + power) / sum;
}

double TileClocks::alone() const {
  return std::max(kCopyLatency, products / 2 + softmax) + std::max(kCopyLatency, products / 2);
}

double TileClocks::with_blocks(int blocks) const { return std::max(queued(blocks), alone() / blocks); }

TileClocks tile_clocks(const ForwardConfiguration& c, const DeviceClass& device) {
  const double row_bytes = 2.0 * c.head_dim, key_bytes = 2 * kKeyTile * row_bytes;
  const double scores = double(c.rows) * kKeyTile;
  // Of a score: scaled less the maximum, the maximum, the sum, half a conversion. Of a value of out: its new factor.
  const double floats = 3.5 * scores + double(c.rows) * c.head_dim * c.key_warps();
  TileClocks t;
  t.products = 2 * scores * c.head_dim / device.matmul_per_clock;
  // Each warp of rows reads all keys and values, each warp of keys all queries.
  t.operands = (c.row_warps * key_bytes + c.key_warps() * c.rows * row_bytes) / kSharedBytesPerClock;
  t.keys = key_bytes / device.l2_bytes_per_clock;
  t.softmax = scores / kExponentialsPerClock + floats / device.floats_per_clock;
  t.resident = std::max(1, std::min(c.blocks, device.shared_bytes / (c.shared_bytes() + 1024)));
  return t;
}

namespace {

// A launch of the merge and the gap before it.
constexpr double kMergeClocks = 3500;

// Fewer rows must be a tenth better, since each tile of queries reads the keys once more, and more waves a thirtieth:
// the clocks are a model's.
constexpr double kFewerRows = 0.9, kMoreWaves = 0.97;

// The tiles of each item, longest first: what build_plan makes of lists of these lengths.
struct Items {
  std::vector<int64_t> tiles;
  int64_t pieces = 0;

  Items(const std::vector<int64_t>& lists, const TileShape& shape, int64_t total) {
    const int64_t share = std::max<int64_t>(shape.min_tiles, (total + shape.items - 1) / shape.items);
    for (const int64_t n : lists) {
      const int64_t parts = (n + share - 1) / share;
      if (parts > 1) pieces += parts;
      for (int64_t p = 0; p < parts; ++p) tiles.push_back((p + 1) * n / parts - p * n / parts);
    }
    std::sort(tiles.begin(), tiles.end(), std::greater<>());
  }

  // Until the last of `units` times these items ends, if each of `slots` takes the next when it is free.
  double end(int64_t units, int64_t slots, double extra) const {
    std::priority_queue<double, std::vector<double>, std::greater<>> free;
    double last = 0;
    for (const int64_t n : tiles) {
      for (int64_t u = 0; u < units; ++u) {
        double start = 0;
        if (int64_t(free.size()) == slots) {
          start = free.top();
          free.pop();
        }
        free.push(start + double(n) + extra);
        last = std::max(last, start + double(n) + extra);
      }
    }
    return last;
  }
};

// Of one configuration, as every number of waves has it.
class Estimate {
 public:
  Estimate(const Rectangle& r, const CudaPlanRequest& request, const ForwardConfiguration& c, const DeviceClass& device)
      : request_(request),
        configuration_(c),
        device_(device),
        tile_(tile_clocks(c, device)),
        units_(request.query_heads / heads_of_tile(request.query_heads / request.kv_heads, c.rows)),
        lists_(forward_tiles(r, shape(1))),
        total_(std::accumulate(lists_.begin(), lists_.end(), int64_t(0))),
        key_bytes_(4.0 * double(r.num_keys * request.kv_heads) * c.head_dim) {}

  TileShape shape(int waves) const {
    return cuda_tiles(request_.query_heads, request_.kv_heads, configuration_.rows, request_.multiprocessors, waves);
  }
  // So many tiles that they end evenly, and none is cut.
  bool ends_evenly() const { return int64_t(lists_.size()) * units_ > 16 * slots(); }

  // Of the chip's multiprocessors, were they always busy and memory no limit.
  double busy_clocks() const { return double(total_ * units_) * tile_.with_blocks(tile_.resident); }

  // From the start to the end.
  double clocks(int waves) const {
    if (total_ == 0) return 0;
    const double memory = key_bytes_ / double(total_ * units_) / device_.memory_per_clock;
    const double tile = std::max(tile_.with_blocks(tile_.resident), memory), extra = 2 * kCopyLatency / tile_.alone();
    const Items items(lists_, shape(waves), total_);
    const double written = 8.0 * double(items.pieces * units_) * configuration_.rows * (configuration_.head_dim + 1);
    return items.end(units_, slots(), extra) * tile_.resident * tile +
           (items.pieces ? kMergeClocks + written / device_.memory_per_clock / multiprocessors() : 0);
  }
  int best_waves() const {
    if (ends_evenly()) return 1;
    int best = 1;
    double fewest = clocks(1);
    for (int waves = 2; waves <= most_waves(configuration_.rows); ++waves) {
      const double with_more = clocks(waves);
      if (with_more > kMoreWaves * fewest) continue;
      best = waves;
      fewest = with_more;
    }
    return best;
  }

 private:
  double multiprocessors() const { return request_.multiprocessors; }
  int64_t slots() const { return int64_t(request_.multiprocessors) * tile_.resident; }

  const CudaPlanRequest& request_;
  const ForwardConfiguration& configuration_;
  const DeviceClass& device_;
  TileClocks tile_;
  int64_t units_;
  std::vector<int64_t> lists_;
  int64_t total_;
  double key_bytes_;
};

}  // namespace

CudaPlan build_cuda_plan(const Rectangle& r, const CudaPlanRequest& request) {
  const int head_dim = padded_head_dim(request.head_dim);
  CHECK(head_dim > 0, "the CUDA kernels take head dims up to 256, got ", request.head_dim);
  CHECK(request.kv_heads > 0 && request.query_heads > 0 && request.query_heads % request.kv_heads == 0, "the ",
        request.query_heads, " query heads must be a positive multiple of the ", request.kv_heads, " KV heads");
  CHECK(request.compute_capability >= 80, "the CUDA kernels need compute capability 8.0 or later, got ",
        request.compute_capability / 10, ".", request.compute_capability % 10);
  CHECK(request.multiprocessors > 0, "multiprocessors must be positive, got ", request.multiprocessors);
  const DeviceClass& device = device_class(request.compute_capability, request.multiprocessors);
  const ForwardConfiguration* best = nullptr;
  TileShape best_tiles = {};
  double fewest = 0;
  for (const ForwardConfiguration& c : kForwardConfigurations) {  // those of one head dim from the most rows down
    if (c.head_dim != head_dim || (request.rows && request.rows != c.rows)) continue;
    const Estimate estimate(r, request, c, device);
    const double clocks = estimate.busy_clocks();
    if (best && clocks > kFewerRows * fewest) continue;
    best = &c;
    best_tiles = estimate.shape(estimate.best_waves());
    fewest = clocks;
  }
  CHECK(best, "no configuration for head dim ", head_dim, " has ", request.rows, " rows: leave them to the planner");
  std::vector<int32_t> words = build_plan(r, best_tiles);
  append_backward_plan(words, build_plan(r, cuda_backward_tiles(request.query_heads, request.kv_heads, head_dim,
                                                                request.multiprocessors)));
  return {best->rows, std::move(words)};
}

}  // namespace regrow
