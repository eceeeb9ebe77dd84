#pragma once

#include "platform/memory.h"
#include "platform/sync.h"

namespace regrow {

// One value of all lanes of the warp, each of which receives it: lanes by halves, so the bits do not depend on timing.
template <class T, class Combine>
DEVICE T reduce_warp(T value, const Combine& combine) {
  UNROLL
  for (int lane_mask = kWarpLanes / 2; lane_mask > 0; lane_mask /= 2)
    value = combine(value, shuffle_xor(value, lane_mask));
  return value;
}

// One value of all threads of the block, each of which receives it: the lanes of a warp, then warps in order.
// `of_warps` serves one reduction only: a second one would overwrite what is still read.
template <int kThreads, class T, class Combine>
DEVICE T reduce_block(SharedArray<T, kThreads / kWarpLanes>& of_warps, T value, const Combine& combine AND_CALL_SITE) {
  value = reduce_warp(value, combine);
  if (lane_index() == 0) of_warps.store(warp_index(), value AND_SITE);
  sync_block(SITE);
  value = of_warps.load(0 AND_SITE);
  for (int warp = 1; warp < kThreads / kWarpLanes; ++warp) value = combine(value, of_warps.load(warp AND_SITE));
  return value;
}

}  // namespace regrow
