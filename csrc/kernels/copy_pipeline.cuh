#pragma once

#include "platform/mbarrier.h"
#include "platform/memory.h"
#include "platform/sync.h"
#include "tile/copy.h"

namespace regrow {

// out = in with each step reversed: no part of the product, but what proves mbarriers. Warp 0 copies, warp 1 reads.
struct CopyPipelineParams {
  const float* in;  // [num_steps, kStep]
  float* out;       // the same
  int num_steps;
};

struct CopyPipelineConfig {
  static constexpr int kThreads = 2 * kWarpLanes;
  static constexpr int kStep = 8;             // values
  static constexpr int kCopiers = kStep / 4;  // lanes that copy 16 bytes each
  static constexpr int kStages = 2;
  static constexpr int kMaxRegisters = 32;  // 32 blocks per SM
  struct Smem {
    alignas(16) SharedArray<float, kStep> stages[kStages];
    MBarrier full[kStages], empty[kStages];
  };
};

template <class Config>
GLOBAL void LAUNCH_BOUNDS(Config::kThreads) copy_pipeline(const CopyPipelineParams p) {
  SHARED(typename Config::Smem, smem);
  if (thread_index() == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      smem.full[stage].init(Config::kCopiers);
      smem.empty[stage].init(Config::kStep);
    }
    fence_mbarrier_init();
  }
  sync_block();

  const int lane = lane_index();
  for (int step = 0; step < p.num_steps; ++step) {
    const int stage = step % Config::kStages, round = step / Config::kStages, first = step * Config::kStep;
    if (warp_index() == 0 && lane < Config::kCopiers) {
      smem.empty[stage].wait(~round & 1);
      copy_async16(smem.stages[stage].address(4 * lane), p.in + first + 4 * lane, true);
      smem.full[stage].arrive_after_copies();
    }
    if (warp_index() == 1 && lane < Config::kStep) {
      smem.full[stage].wait(round & 1);
      store_global(p.out + first + lane, smem.stages[stage].load(Config::kStep - 1 - lane));
      smem.empty[stage].arrive();
    }
  }
}

}  // namespace regrow
