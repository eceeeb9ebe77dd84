#include "kernels/attention_plan.h"

#include <algorithm>

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
  for (const ForwardConfiguration& c : kForwardConfigurations) {
    if (c.head_dim != head_dim || (request.rows && request.rows != c.rows)) continue;
    const TileShape tiles = cuda_tiles(request.query_heads, request.kv_heads, c.rows, request.multiprocessors);
    const int64_t heads = heads_of_tile(request.query_heads / request.kv_heads, c.rows);
    const TileClocks tile = tile_clocks(c, device);
    const double clocks =
        double(count_forward_tiles(r, tiles)) * double(request.query_heads / heads) * tile.with_blocks(tile.resident);
    if (best && clocks >= fewest) continue;
    best = &c;
    best_tiles = tiles;
    fewest = clocks;
  }
  CHECK(best, "no configuration for head dim ", head_dim, " has ", request.rows, " rows");
  return {best->rows, build_plan(r, best_tiles)};
}

}  // namespace regrow
