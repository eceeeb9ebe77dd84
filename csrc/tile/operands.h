#pragma once

// From sums to operands: what C fragments hold of two neighbouring blocks of 8 columns is what A wants of 16.
#include "tile/copy.h"
#include "tile/mma.h"

namespace regrow {

template <class T, int kOperands>
DEVICE void as_operands(FragmentA<T> (&operands)[kOperands], const FragmentC (&values)[2 * kOperands]) {
  UNROLL
  for (int n = 0; n < 2 * kOperands; ++n) {
    UNROLL
    for (int half = 0; half < 2; ++half)
      operands[n / 2].pairs[n % 2 * 2 + half] = pack<T>(values[n].values[2 * half], values[n].values[2 * half + 1]);
  }
}

// 16 rows of a tile from (row, column) on.
template <class T, int kRows, int kColumns, int kOperands>
DEVICE void store_operands(SharedTile<T, kRows, kColumns>& tile, int row, int column,
                           const FragmentA<T> (&operands)[kOperands] AND_CALL_SITE) {
  const int lane = opaque(lane_index());
  UNROLL
  for (int n = 0; n < 2 * kOperands; ++n) {
    UNROLL
    for (int half = 0; half < 2; ++half)
      store_pair(tile, tile.offset_of_lane(row + 8 * half, lane / 4, column + 8 * (n & ~1), 8 * (n & 1)) + lane % 4 * 2,
                 operands[n / 2].pairs[n % 2 * 2 + half] AND_SITE);
  }
}

}  // namespace regrow
