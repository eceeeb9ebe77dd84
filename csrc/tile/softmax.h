#pragma once

// Softmax over the columns of score fragments, tile by tile. A thread holds two columns of rows l/4 and l/4 + 8 of each
// block of 16 rows; the four lanes of a quad share these rows.
#include <cmath>

#include "tile/operands.h"

namespace regrow {

DEVICE float quad_max(float x) {
  x = fmaxf(x, shuffle_xor(x, 1));
  return fmaxf(x, shuffle_xor(x, 2));
}

DEVICE float quad_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// Log2 units: weight = 2^(score * multiplier - reference).
template <int kRowBlocks>
struct OnlineSoftmax {
  float reference[kRowBlocks][2];  // the largest score * multiplier so far, -inf before any
  float sum[kRowBlocks][2];        // of the weights in this thread's columns

  DEVICE OnlineSoftmax() {
    UNROLL
    for (int b = 0; b < kRowBlocks; ++b) {
      UNROLL
      for (int half = 0; half < 2; ++half) reference[b][half] = -INFINITY, sum[b][half] = 0;
    }
  }

  // Scores become weights; what was summed up in `out` before is scaled to the new reference.
  template <int kBlocks, int kOutBlocks>
  DEVICE void update(FragmentC (&scores)[kRowBlocks][kBlocks], FragmentC (&out)[kRowBlocks][kOutBlocks],
                     float multiplier) {
    UNROLL
    for (int b = 0; b < kRowBlocks; ++b) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
        UNROLL
        for (int n = 0; n < kBlocks; ++n)
          top = fmaxf(top, fmaxf(scores[b][n].values[2 * half], scores[b][n].values[2 * half + 1]));
        const float now = fmaxf(reference[b][half], quad_max(top) * multiplier);
        // A row that has seen nothing stays at -inf; -inf - (-inf) would be NaN.
        const float subtract = now == -INFINITY ? 0 : now;
        const float factor = exp2_approximate(reference[b][half] - subtract);
        reference[b][half] = now;
        float tile_sum = 0;
        UNROLL
        for (int n = 0; n < kBlocks; ++n) {
          UNROLL
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            float& value = scores[b][n].values[i];
            value = exp2_approximate(value * multiplier - subtract);
            tile_sum += value;
          }
        }
        sum[b][half] = sum[b][half] * factor + tile_sum;
        UNROLL
        for (int n = 0; n < kOutBlocks; ++n) {
          out[b][n].values[2 * half] *= factor;
          out[b][n].values[2 * half + 1] *= factor;
        }
      }
    }
  }
};

}  // namespace regrow
