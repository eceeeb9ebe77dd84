#pragma once

// Which tiles the CUDA attention runs with, and why: read by the kernels at compile time, by the planner, the launcher
// and regrow.explain at run time.
#include <algorithm>
#include <cstdint>
#include <iterator>

namespace regrow {

// Keys of every tile: 64 keys and values of 128 are what an SM takes from L2 in the time of their product with 40 rows,
// and the scores of 32 rows a warp against them fill 64 registers.
inline constexpr int kKeyTile = 64;
inline constexpr int kAttentionThreads = 128;

// One way to run the forward. Of a block's four warps, row_warps lie along the rows of its query tile, the others along
// the keys of a key tile, each with an online softmax of its own, merged at the end.
struct ForwardConfiguration {
  int head_dim;        // of q, k and v; zeros beyond the real one
  int rows;            // of a query tile: tokens times heads of a KV group
  int row_warps;       // rows / row_warps is a multiple of 16
  int blocks;          // that share a multiprocessor, as far as registers go
  const char* reason;  // what it is for; shown by regrow.explain

  constexpr int key_warps() const { return kAttentionThreads / 32 / row_warps; }
  constexpr int max_registers() const { return std::min(255, 65'536 / (kAttentionThreads * blocks) / 8 * 8); }
  // Of a block, at most: queries, then keys and values or the warps' results, then what the mask asks. Tiles start at
  // multiples of 1,024.
  constexpr int shared_bytes() const {
    constexpr auto aligned = [](int bytes) { return (bytes + 1023) / 1024 * 1024; };
    const int tiles = 2 * kKeyTile * head_dim * 2;
    const int results = key_warps() == 1 ? 0 : key_warps() * rows * (8 + 8 * (head_dim / 2 + 4));
    return aligned(rows * head_dim * 2 + aligned(std::max(tiles, results)) + 8 * rows + 12 * kKeyTile);
  }
};

// Beside each: the registers of its fragments.
inline constexpr ForwardConfiguration kForwardConfigurations[] = {
    // With 16 rows a warp ldmatrix would take as long as mma. With three blocks head dim 64 spills.
    {64, 128, 4, 2, "many queries: 32 rows a warp, so that each operand serves two products"},     // out 64, scores 64
    {128, 128, 4, 2, "many queries: 32 rows a warp, so that each operand serves two products"},    // out 128, scores 64
    {64, 64, 4, 4, "tens of rows, verification: no products with padding, more bytes under way"},  // out 32, scores 32
    {128, 64, 4, 3, "tens of rows, verification: no products with padding, more bytes under way"},  // out 64, scores 32
    {256, 64, 4, 2, "head dim 256: out alone would need 256 registers with 128 rows"},  // out 128, scores 32
    // The tokens of a group fill one warp's 16 rows.
    {64, 16, 1, 4, "few rows, decoding: the warps share the keys of a tile"},   // out 32, scores 8
    {128, 16, 1, 4, "few rows, decoding: the warps share the keys of a tile"},  // out 64, scores 8
    {256, 16, 1, 2, "few rows, decoding: the warps share the keys of a tile"},  // out 128, scores 8; three blocks spill
};

// The backward: a block of eight warps owns a key tile, each warp 16 keys of it, and walks its query tiles of 64 rows.
struct BackwardConfiguration {
  int head_dim;
  int keys;          // of a key tile
  int column_warps;  // that share 16 keys: each takes a part of the queries' rows, then of the head dim's columns
  int stages;        // of queries and their gradients in shared memory
};

inline constexpr int kBackwardRows = 64;
inline constexpr int kBackwardThreads = 256;  // one block a multiprocessor, 255 registers

inline constexpr BackwardConfiguration kBackwardConfigurations[] = {
    {64, 128, 1, 2},   // registers: dk and dv 64, scores and dweights 64
    {128, 128, 1, 2},  // dk and dv 128, scores and dweights 64; 145 KB fit sm_80
    {256, 64, 2, 1},   // dk and dv 128; two stages would need 209 KB
};

constexpr int find_backward_configuration(int head_dim) { return head_dim <= 64 ? 0 : (head_dim <= 128 ? 1 : 2); }

// The head dim of the table that holds this one; 0 if none does.
constexpr int padded_head_dim(int64_t head_dim) {
  return head_dim <= 64 ? 64 : (head_dim <= 128 ? 128 : (head_dim <= 256 ? 256 : 0));
}

// -1 where the table has no such entry.
constexpr int find_configuration(int head_dim, int rows) {
  for (int i = 0; i < int(std::size(kForwardConfigurations)); ++i)
    if (kForwardConfigurations[i].head_dim == head_dim && kForwardConfigurations[i].rows == rows) return i;
  return -1;
}

// f.template operator()<the head dim of the table>().
template <class F>
void with_head_dim(int64_t head_dim, const F& f) {
  switch (padded_head_dim(head_dim)) {
    case 64:
      return f.template operator()<64>();
    case 128:
      return f.template operator()<128>();
    case 256:
      return f.template operator()<256>();
  }
}

// How many heads of a group share a query tile: all, or an equal part of them where the tile has fewer rows.
constexpr int heads_of_tile(int64_t group, int rows) {
  int heads = int(std::min<int64_t>(group, rows));
  while (group % heads) --heads;
  return heads;
}

// What a class of chips can do, in one clock of one multiprocessor.
struct DeviceClass {
  const char* name;
  int compute_capability;   // ten times major plus minor: this and later ones
  int max_multiprocessors;  // 0: any
  int matmul_per_clock;     // multiply-adds of mma.sync, 16 bits in, fp32 sums
  int floats_per_clock;     // fp32 operations
  int l2_bytes_per_clock;   // a fair share of L2's 5,120 bytes a clock (A100), which we take of the later ones too
  int memory_per_clock;     // bytes, a fair share of a copy
  int shared_bytes;         // of a multiprocessor
};

inline constexpr int kSharedBytesPerClock = 128, kExponentialsPerClock = 16;

// The last that applies. Blocks leave 1 KiB each to the system.
inline constexpr DeviceClass kDeviceClasses[] = {
    {"sm_80", 80, 0, 1024, 64, 47, 13, 164 << 10},        // A100: 312 TFLOP/s on 108 multiprocessors at 1.41 GHz
    {"sm_86, sm_89", 86, 0, 512, 128, 32, 5, 100 << 10},  // half the rate, and little shared memory
    {"sm_90", 90, 0, 1270, 128, 39, 18, 228 << 10},       // H100, H200: mma.sync reaches 0.62 of wgmma's 2,048
    // 148 TFLOP/s on 78 at 1.98 GHz are 479. mma.sync is held to 0.62 here too: at the full rate nothing in the tile
    // would keep the published kernel at 84 TFLOP/s (docs/performance.md).
    {"sm_90, H20", 90, 78, 297, 128, 64, 24, 228 << 10},
    {"sm_100 and later", 100, 0, 1024, 128, 39, 18, 228 << 10},  // through PTX
};

constexpr const DeviceClass& device_class(int compute_capability, int multiprocessors) {
  const DeviceClass* found = &kDeviceClasses[0];
  for (const DeviceClass& c : kDeviceClasses)
    if (compute_capability >= c.compute_capability &&
        (!c.max_multiprocessors || multiprocessors <= c.max_multiprocessors))
      found = &c;
  return *found;
}

}  // namespace regrow
