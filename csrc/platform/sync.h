#pragma once

// Barriers and shuffles. Only barriers order memory accesses; a shuffle hands over registers and orders nothing.
#include "platform/device.h"

namespace regrow {

constexpr uint32_t kAllLanes = 0xffffffff;

// All threads of the block.
DEVICE void sync_block(CALL_SITE) {
#if defined(__CUDACC__)
  __syncthreads();
#else
  emulator::sync_block(site);
#endif
}

// The lanes of one warp.
DEVICE void sync_warp(uint32_t lanes = kAllLanes AND_CALL_SITE) {
#if defined(__CUDACC__)
  __syncwarp(lanes);
#else
  emulator::sync_warp(lanes, site);
#endif
}

// Barrier 1 to 15 of the block: returns once `num_threads` (whole warps) have synced or arrived. 0 is sync_block's.
DEVICE void sync_named(int barrier, int num_threads AND_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
#else
  emulator::sync_named(barrier, num_threads, site);
#endif
}

// Counts as an arrival and does not wait: what this thread did before is seen by those that sync.
DEVICE void arrive_named(int barrier, int num_threads AND_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
#else
  emulator::arrive_named(barrier, num_threads, site);
#endif
}

#if !defined(__CUDACC__)
namespace emulator {

template <class T>
struct Shuffle {
  T value, result;
  int source_lane;
};

template <class T>
void shuffle_lanes(Shuffle<T>* const* lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (!lanes[lane]) continue;
    const Shuffle<T>* source = lanes[lanes[lane]->source_lane];
    if (!source) fail("shuffle reads lane " + std::to_string(lanes[lane]->source_lane) + ", which takes no part");
    lanes[lane]->result = source->value;
  }
}

}  // namespace emulator
#endif

// The value of lane `source_lane`, 0 to 31.
template <class T>
DEVICE T shuffle(T value, int source_lane, uint32_t lanes = kAllLanes AND_CALL_SITE) {
#if defined(__CUDACC__)
  return __shfl_sync(lanes, value, source_lane);
#else
  emulator::Shuffle<T> operands = {value, value, source_lane & 31};
  emulator::collective<emulator::Shuffle<T>, emulator::shuffle_lanes<T> >("shuffle", lanes, operands, site);
  return operands.result;
#endif
}

// The value of lane `lane_index() ^ lane_mask`.
template <class T>
DEVICE T shuffle_xor(T value, int lane_mask, uint32_t lanes = kAllLanes AND_CALL_SITE) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(lanes, value, lane_mask);
#else
  return shuffle(value, lane_index() ^ lane_mask, lanes, site);
#endif
}

}  // namespace regrow
