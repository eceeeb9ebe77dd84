#pragma once

#include "platform/memory.h"
#include "tile/copy.h"
#include "tile/mma.h"

namespace regrow {

// out = a b, or a b^T: no part of the product, but what proves the tile primitives, alone and together.
struct TileMatmulParams {
  const void* a;  // [m, k], rows a_stride elements apart
  const void* b;  // [k, n], or [n, k] transposed; rows b_stride elements apart
  float* out;     // [m, n] contiguous
  int m, n, k;    // n and k multiples of 64
  int a_stride, b_stride;
};

template <class T_, bool kTransposeB_>
struct TileMatmulConfig {
  using T = T_;
  static constexpr bool kTransposeB = kTransposeB_;
  static constexpr int kTile = 64;
  static constexpr int kThreads = 128;  // one warp per 16 rows
  static constexpr int kStages = 2;
  static constexpr int kMaxRegisters = 128;  // 4 blocks per SM
  struct Smem {
    SharedTile<T, kTile, kTile> a[kStages], b[kStages];
  };
};

template <class Config>
GLOBAL void LAUNCH_BOUNDS(Config::kThreads) tile_matmul(const TileMatmulParams p) {
  using T = typename Config::T;
  constexpr int kTile = Config::kTile;
  SHARED(typename Config::Smem, smem);
  const int first_row = int(block_index()) * kTile, first_column = block_index_y() * kTile;
  const int num_steps = p.k / kTile;

  const auto copy_step = [&](int step) {
    const int stage = step % Config::kStages, k = step * kTile;
    const T* a = static_cast<const T*>(p.a) + int64_t(first_row) * p.a_stride + k;
    const int64_t b =
        Config::kTransposeB ? int64_t(first_column) * p.b_stride + k : int64_t(k) * p.b_stride + first_column;
    copy_rows_async<Config::kThreads>(smem.a[stage], a, p.a_stride, p.m - first_row);
    copy_rows_async<Config::kThreads>(smem.b[stage], static_cast<const T*>(p.b) + b, p.b_stride, kTile);
  };

  FragmentC sums[kTile / 8];
  copy_step(0);
  commit_copies();
  for (int step = 0; step < num_steps; ++step) {
    if (step + 1 < num_steps) copy_step(step + 1);
    commit_copies();  // in the last step an empty group, so that one wait serves all
    wait_copies<1>();
    sync_block();  // every thread's part of this step has landed
    const auto& a_tile = smem.a[step % Config::kStages];
    const auto& b_tile = smem.b[step % Config::kStages];
    UNROLL
    for (int k = 0; k < kTile; k += 16) {
      const auto a = load_a(a_tile, warp_index() * 16, k);
      UNROLL
      for (int n = 0; n < kTile; n += 16) {
        const auto b = Config::kTransposeB ? load_b_of_rows(b_tile, n, k) : load_b(b_tile, k, n);
        mma(sums[n / 8], a, b.first);
        mma(sums[n / 8 + 1], a, b.second);
      }
    }
    sync_block();  // the next copy overwrites this stage
  }

  UNROLL
  for (int n = 0; n < kTile / 8; ++n) {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + warp_index() * 16 + row_of_value(i), column = n * 8 + column_of_value(i);
      if (row < p.m) store_global(p.out + int64_t(row) * p.n + first_column + column, sums[n].values[i]);
    }
  }
}

}  // namespace regrow
