#pragma once

#include "platform/device.h"

namespace regrow {

// A [rows, columns] tile of 16-bit values in shared memory: panels of 64 columns, rows of 128 bytes in each, and in a
// row the 16-byte chunk c stored at c ^ (row % 8). Eight rows of one column of chunks, which is what ldmatrix reads at
// once, then lie in all 32 banks. It is the hardware's 128-byte swizzle, so TMA and wgmma can share the tile.
template <class T, int kRows_, int kColumns_>
struct alignas(1024) SharedTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kChunk = 8;  // values in 16 bytes
  static constexpr int kPanel = 64;
  static_assert(sizeof(T) == 2 && kRows % 8 == 0 && kColumns % kPanel == 0);

  // The 16 bytes that hold columns [column, column + 8) of a row; column is a multiple of 8.
  DEVICE T* chunk(int row, int column) { return data + offset(row, column); }
  DEVICE const T* chunk(int row, int column) const { return data + offset(row, column); }

  DEVICE static int offset(int row, int column) {
#if !defined(__CUDACC__)
    if (row < 0 || row >= kRows || column < 0 || column >= kColumns || column % kChunk)
      emulator::fail("row " + std::to_string(row) + ", column " + std::to_string(column) + " of a tile [" +
                     std::to_string(kRows) + ", " + std::to_string(kColumns) + "]");
#endif
    const unsigned r = row, c = column;  // unsigned: / and % are then shifts and masks
    return int(c / kPanel * (kRows * kPanel) + r * kPanel + (c % kPanel / kChunk ^ r % 8) * kChunk);
  }

  // The chunk at (row + lane_row, column + lane_column), where row is a multiple of 8, column one of 16 and lane_column
  // 0 or 8. What depends on the lane then stands alone, so that of a tile's addresses only four differ by more than a
  // constant, which the instruction holds.
  DEVICE static int offset_of_lane(int row, int lane_row, int column, int lane_column) {
#if !defined(__CUDACC__)
    if (row % 8 || column % 16) emulator::fail("a warp reads from rows of 8 and columns of 16");
    offset(row + lane_row, column + lane_column);  // checks the bounds
#endif
    const unsigned r = lane_row, c = column;
    const unsigned of_lane = r * kPanel + (unsigned(lane_column) / kChunk ^ r % 8) * kChunk;
    return int(c / kPanel * (kRows * kPanel) + unsigned(row) * kPanel + (of_lane ^ c % kPanel));
  }

  T data[kRows * kColumns];
};

}  // namespace regrow
