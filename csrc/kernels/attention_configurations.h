#pragma once

// Which tiles the CUDA attention runs with, and why: read by the kernels at compile time, by the planner, the launcher
// and regrow.explain at run time.
#include <algorithm>
#include <cstdint>
#include <iterator>

namespace regrow {

// One way to run the forward. Every block has four warps: row_warps of them along the rows of its query tile, the others
// along the keys of a key tile, each with an online softmax of its own, merged at the end.
struct ForwardConfiguration {
  int head_dim;   // of q, k and v, zeros beyond the real one
  int rows;       // of a query tile: tokens times the heads of a KV group
  int row_warps;  // rows / row_warps is a multiple of 16
  int blocks;     // that a multiprocessor's registers hold: 65,536 / (128 threads * blocks) for each thread

  constexpr int key_warps() const { return 4 / row_warps; }
  constexpr int max_registers() const { return std::min(255, 65'536 / (128 * blocks) / 8 * 8); }
  // Shared memory: the query tile, a tile of keys, one of values; what the mask needs is within the last KiB.
  constexpr int shared_bytes() const { return 2 * head_dim * (rows + 2 * kKeyTile) + 1024; }

  // Of every configuration: a partial tile is cut in eights of it, and 64 keys of 128 are what one SM takes from L2 in
  // the time of their product with 16 rows.
  static constexpr int kKeyTile = 64;
};

inline constexpr ForwardConfiguration kForwardConfigurations[] = {
    // Training and prefill. 32 rows a warp: each operand loaded from shared memory serves two products, without which
    // ldmatrix would take as long as mma.
    {64, 128, 4, 3},   // out 64, scores 64 registers
    {128, 128, 4, 2},  // out 128, scores 64
    // Verification: 16 draft tokens of a group of 4, say. Half the products of the above where the rest would be padding,
    // and more blocks, so that more bytes are under way.
    {64, 64, 4, 4},   // out 32, scores 32
    {128, 64, 4, 3},  // out 64, scores 32
    {256, 64, 4, 2},  // out 128, scores 32; 128 rows would need 256 for out alone
    // Decoding: one token of a group. Warps split the keys, since 16 rows are one warp's.
    {64, 16, 1, 4},   // out 32, scores 8
    {128, 16, 1, 4},  // out 64, scores 8
    {256, 16, 1, 3},  // out 128, scores 8
};

// The smallest head dim of the table that holds this one; 0 if none does.
constexpr int padded_head_dim(int64_t head_dim) {
  return head_dim <= 64 ? 64 : (head_dim <= 128 ? 128 : (head_dim <= 256 ? 256 : 0));
}

// Null where the table has no such entry.
constexpr const ForwardConfiguration* find_configuration(int head_dim, int rows) {
  const auto* found = std::find_if(std::begin(kForwardConfigurations), std::end(kForwardConfigurations),
                                   [&](const ForwardConfiguration& c) { return c.head_dim == head_dim && c.rows == rows; });
  return found == std::end(kForwardConfigurations) ? nullptr : found;
}

// How many heads of a group share a query tile: all, or an equal part of them where they are more than its rows.
constexpr int heads_of_tile(int64_t group, int rows) {
  for (int heads = int(std::min<int64_t>(group, rows)); heads > 1; --heads)
    if (group % heads == 0) return heads;
  return 1;
}

// What a chip's limits mean for these kernels.
struct DeviceClass {
  const char* name;
  int compute_capability;          // ten times major plus minor: of this and later ones, up to the next entry
  int max_multiprocessors;         // 0: any
  int matmul_per_clock;            // fp32-accumulated mma.sync, multiply-adds of one multiprocessor in a clock
  int shared_bytes_per_block;      // opt-in
  int shared_bytes_per_multiprocessor;
};

inline constexpr DeviceClass kDeviceClasses[] = {
    {"sm_80", 80, 0, 1024, 163 << 10, 164 << 10},           // A100: 312 TFLOP/s on 108 SMs at 1.41 GHz
    {"sm_86", 86, 0, 512, 99 << 10, 100 << 10},             // and sm_89: small shared memory, half the tensor rate
    {"sm_90, H20", 90, 78, 470, 227 << 10, 228 << 10},      // 148 TFLOP/s on 78 SMs at 1.98 GHz: matmul is scarce
    {"sm_90", 90, 0, 1330, 227 << 10, 228 << 10},           // mma.sync reaches 0.62 of wgmma's 2,145
    {"sm_100 and later", 100, 0, 1024, 227 << 10, 228 << 10},  // through PTX; mma.sync as on sm_80
};

}  // namespace regrow
