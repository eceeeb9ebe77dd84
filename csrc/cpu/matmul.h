#pragma once

#include <algorithm>

#include "cpu/operand.h"

REGROW_BEGIN_ISA

// What a product does to what is there: replaces it, is added to it, or is added to it times a factor per row.
enum class Into { kReplace, kAdd, kScaleAdd };

// A [rows, depth], row-major or (kTransposed) stored as [depth, rows].
template <class P>
struct MatrixA {
  const typename P::Element* data;
  int64_t stride;
};

// B [depth, columns] as panels of kPanel columns: [panel][panel_depth][kPanel].
template <class P>
struct MatrixB {
  const typename P::Element* data;
  int64_t panel_depth;
};

template <class P>
struct MatrixC {
  typename P::Acc* data;
  int64_t stride;  // columns are allocated up to a whole panel
};

// Registers: kRowsPerTile rows of a panel, sums in registers. 16 sums hide the latency of two multiply-adds a cycle;
// AVX2 has 16 registers in all.
inline constexpr int kRowsPerTile = kVectorBytes == 64 ? 8 : 4;

template <class P, Into kInto, bool kTransposed, int kRows, int kVectors>
inline void multiply_tile(MatrixC<P> c, MatrixA<P> a, const typename P::Element* b, int depth,
                          const typename P::Acc* factor) {
  using Acc = typename P::Acc;
  constexpr int kWidth = kLanes<Acc>;
  Vector<Acc> sum[kRows][kVectors] = {};
  for (int k = 0; k < depth; ++k) {
    REGROW_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto x = kTransposed ? a.data[k * a.stride + r] : a.data[r * a.stride + k];
      REGROW_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = P::multiply_add(sum[r][v], x, b + k * kPanel<P> + v * kWidth);
    }
  }
  REGROW_UNROLL
  for (int r = 0; r < kRows; ++r) {
    REGROW_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Acc* target = c.data + r * c.stride + v * kWidth;
      if constexpr (kInto == Into::kAdd) sum[r][v] += load(target);
      if constexpr (kInto == Into::kScaleAdd) sum[r][v] += load(target) * factor[r];
      store(target, sum[r][v]);
    }
  }
}

template <class P, Into kInto, bool kTransposed, int kVectors, int kRows = kRowsPerTile - 1>
inline void multiply_last_rows(int rows, MatrixC<P> c, MatrixA<P> a, const typename P::Element* b, int depth,
                               const typename P::Acc* factor) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_tile<P, kInto, kTransposed, kRows, kVectors>(c, a, b, depth, factor);
    multiply_last_rows<P, kInto, kTransposed, kVectors, kRows - 1>(rows, c, a, b, depth, factor);
  }
}

template <class P, Into kInto, bool kTransposed, int kVectors>
inline void multiply_panel(MatrixC<P> c, MatrixA<P> a, const typename P::Element* b, int rows, int depth,
                           const typename P::Acc* factor) {
  const int64_t row_step = kTransposed ? 1 : a.stride;
  int r = 0;
  for (; r + kRowsPerTile <= rows; r += kRowsPerTile)
    multiply_tile<P, kInto, kTransposed, kRowsPerTile, kVectors>(
        {c.data + r * c.stride, c.stride}, {a.data + r * row_step, a.stride}, b, depth, factor + r);
  multiply_last_rows<P, kInto, kTransposed, kVectors>(rows - r, {c.data + r * c.stride, c.stride},
                                                      {a.data + r * row_step, a.stride}, b, depth, factor + r);
}

// Sums run over blocks of so many Elements, then over blocks: rounding grows with the root of each, not of the whole.
inline constexpr int kDepthBlock = 128;

// C [rows, columns] (+)= A [rows, depth] B [depth, columns]; depth in Elements. Each sum runs in the same order
// whatever the tiling, so a row's result does not depend on its neighbours.
template <class P, Into kInto, bool kTransposed>
void multiply(MatrixC<P> c, MatrixA<P> a, MatrixB<P> b, int rows, int columns, int depth,
              const typename P::Acc* factor = nullptr) {
  const int block = std::min(depth, kDepthBlock);
  for (int first = 0; first < columns; first += kPanel<P>) {
    const auto* panel = b.data + int64_t(first / kPanel<P>) * b.panel_depth * kPanel<P>;
    const MatrixC<P> target = {c.data + first, c.stride};
    if (columns - first > kPanel<P> / 2)
      multiply_panel<P, kInto, kTransposed, 2>(target, a, panel, rows, block, factor);
    else
      multiply_panel<P, kInto, kTransposed, 1>(target, a, panel, rows, block, factor);
  }
  if (depth > block) {
    const MatrixA<P> rest = {a.data + block * (kTransposed ? a.stride : 1), a.stride};
    multiply<P, Into::kAdd, kTransposed>(c, rest, {b.data + block * kPanel<P>, b.panel_depth}, rows, columns,
                                         depth - block);
  }
}

REGROW_END_ISA
