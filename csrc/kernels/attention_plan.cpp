#include "kernels/attention_plan.h"

#include <algorithm>

#include "kernels/attention_tiling.h"
#include "platform/check.h"
#include "tree/plan.h"

namespace regrow {

double tile_clocks(const ForwardConfiguration& c, const DeviceClass& device) {
  const double row_bytes = 2.0 * c.head_dim, key_bytes = 2 * kKeyTile * row_bytes;
  const double products = 2.0 * c.rows * kKeyTile * c.head_dim / device.matmul_per_clock;
  // Each warp of rows reads all keys and values, each warp of keys all queries.
  const double operands = (c.row_warps * key_bytes + c.key_warps() * c.rows * row_bytes) / kSharedBytesPerClock;
  const double exponentials = double(c.rows) * kKeyTile / kExponentialsPerClock;
  return std::max({products, operands, exponentials, key_bytes / kL2BytesPerClock});
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
    const double clocks =
        double(count_forward_tiles(r, tiles)) * double(request.query_heads / heads) * tile_clocks(c, device);
    if (best && clocks >= fewest) continue;
    best = &c;
    best_tiles = tiles;
    fewest = clocks;
  }
  CHECK(best, "no configuration for head dim ", head_dim, " has ", request.rows, " rows");
  std::vector<int32_t> words = build_plan(r, best_tiles);
  append_backward_plan(words, build_plan(r, cuda_backward_tiles(request.query_heads, request.kv_heads, head_dim,
                                                                request.multiprocessors)));
  return {best->rows, std::move(words)};
}

}  // namespace regrow
