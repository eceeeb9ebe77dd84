#pragma once

// Small kernels that prove mbarriers, as probes.cuh proves the rest.
#include "emulator/probes.cuh"
#include "kernels/copy_pipeline.cuh"
#include "platform/mbarrier.h"

namespace regrow {

struct MBarrierSmem {
  alignas(16) SharedArray<float, kProbeThreads> values;
  MBarrier barrier, other;
};

namespace probes {

DEVICE MBarrierSmem& smem_with_mbarriers(int count, int other_count AND_CALL_SITE) {
  SHARED(MBarrierSmem, smem);
  if (thread_index() == 0) {
    smem.barrier.init(count AND_SITE);
    if (other_count) smem.other.init(other_count AND_SITE);
  }
  sync_block(SITE);
  return smem;
}

GLOBAL void pipeline_of_copies(const ProbeParams p) {
  copy_pipeline<CopyPipelineConfig>({p.in, p.out, kProbeThreads / CopyPipelineConfig::kStep});
}

// A barrier of the block: all arrive and all wait, three phases of it.
GLOBAL void reverse_by_mbarrier(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(64, 0);
  const int thread = thread_index();
  smem.values.store(thread, load_global(p.in + thread));
  smem.barrier.arrive();
  smem.barrier.wait(0);
  const float reversed = smem.values.load(63 - thread);
  smem.barrier.arrive();
  smem.barrier.wait(1);
  smem.values.store(thread, reversed + 1);
  smem.barrier.arrive();
  smem.barrier.wait(0);
  store_global(p.out + 63 - thread, smem.values.load(63 - thread));
}

// One thread waits for the copies of others; a barrier tells the rest, and the issuers of their own.
GLOBAL void copies_told_by_others(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(16, 0);
  const int thread = thread_index();
  if (thread < 16) {
    copy_async16(smem.values.address(4 * thread), p.in + 4 * thread, true);
    smem.barrier.arrive_after_copies();
  }
  if (thread == 40) smem.barrier.wait(0);
  sync_block();
  store_global(p.out + thread, smem.values.load(63 - thread));
  sync_block();
  if (thread < 16) copy_async16(smem.values.address(4 * thread), p.in, true);
}

// Warp 0 waits for phase 0 and warp 1 for phase 1, which `other` tells from the phase before 0.
GLOBAL void waits_for_alternate_phases(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 32);
  if (thread_index() == 40) {
    smem.values.store(0, load_global(p.in));
    smem.barrier.arrive();
  }
  if (warp_index() == 0) {
    smem.barrier.wait(0);
    store_global(p.out + thread_index(), smem.values.load(0));
    smem.other.arrive();
  }
  if (thread_index() == 5) {
    smem.other.wait(0);
    smem.values.store(0, load_global(p.in + 1));
    smem.barrier.arrive();
  }
  if (warp_index() == 1) {
    smem.other.wait(0);
    smem.barrier.wait(1);
    store_global(p.out + thread_index(), smem.values.load(0));
  }
}

// The copies are told of; what the thread itself stored is not.
GLOBAL void store_before_arrive_after_copies(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) {
    smem.values.store(0, 1);
    copy_async16(smem.values.address(4), p.in, true);
    smem.barrier.arrive_after_copies();
  }
  if (thread_index() != 32) return;
  smem.barrier.wait(0);
  smem.values.load(4);
  smem.values.load(0);
}

// The copy comes after the arrival that was to cover it.
GLOBAL void copy_after_arrive_after_copies(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) {
    smem.barrier.arrive_after_copies();
    copy_async16(smem.values.address(0), p.in, true);
  }
  if (thread_index() != 32) return;
  smem.barrier.wait(0);
  smem.values.load(0);
}

// A plain arrival says nothing of copies under way.
GLOBAL void arrive_with_copies_under_way(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) {
    copy_async16(smem.values.address(0), p.in, true);
    smem.barrier.arrive();
  }
  if (thread_index() != 32) return;
  smem.barrier.wait(0);
  smem.values.load(0);
}

GLOBAL void mbarrier_that_nobody_initialised(const ProbeParams) {
  SHARED(MBarrierSmem, smem);
  smem.barrier.arrive();
}

GLOBAL void mbarrier_used_beside_its_init(const ProbeParams) {
  SHARED(MBarrierSmem, smem);
  if (thread_index() == 0) smem.barrier.init(1);
  if (thread_index() == 40) smem.barrier.arrive();
}

GLOBAL void mbarrier_initialised_again(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) smem.barrier.init(1);
}

// in[0] is the count, in[1] the parity.
GLOBAL void mbarrier_of_numbers(const ProbeParams p) {
  SHARED(MBarrierSmem, smem);
  if (thread_index() != 0) return;
  smem.barrier.init(int(load_global(p.in)));
  smem.barrier.wait(int(load_global(p.in + 1)));
}

GLOBAL void too_many_arrivals(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(32, 0);
  smem.barrier.arrive();
}

// Whichever of the two comes first ends the phase.
GLOBAL void too_many_arrivals_after_copies(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() != 0) return;
  copy_async16(smem.values.address(0), p.in, true);
  smem.barrier.arrive_after_copies();
  smem.barrier.arrive();
}

GLOBAL void too_few_arrivals(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(64, 0);
  if (thread_index() < 40) smem.barrier.arrive();
  smem.barrier.wait(0);
}

GLOBAL void arrivals_left_at_mbarrier(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(64, 0);
  if (thread_index() < 40) smem.barrier.arrive();
}

GLOBAL void copies_left_at_mbarrier(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(2, 0);
  if (thread_index() == 0) smem.barrier.arrive_after_copies();
}

// Two phases may complete before thread 40 comes to wait for the first.
GLOBAL void waiter_two_phases_behind(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) {
    smem.barrier.arrive();
    smem.barrier.arrive();
  }
  if (thread_index() == 40) smem.barrier.wait(0);
}

// Thread 40 may come before the first phase is complete, and meet the one before it.
GLOBAL void waiter_a_phase_early(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) {
    smem.barrier.arrive();
    smem.barrier.arrive();
  }
  if (thread_index() == 40) smem.barrier.wait(1);
}

// A consumer that starts as producers do.
GLOBAL void consumer_starts_at_parity_1(const ProbeParams) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) {
    smem.values.store(0, 1);
    smem.barrier.arrive();
  }
  if (thread_index() != 40) return;
  smem.barrier.wait(1);
  smem.values.load(0);
}

GLOBAL void reads_an_mbarrier(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(64, 0);
  smem.barrier.arrive();
  smem.barrier.wait(0);
  if (thread_index() == 0) reinterpret_cast<SharedArray<float, 2>&>(smem.barrier).load(1);
  store_global(p.out + thread_index(), 1.0f);
}

GLOBAL void copies_over_an_mbarrier(const ProbeParams p) {
  MBarrierSmem& smem = smem_with_mbarriers(1, 0);
  if (thread_index() == 0) copy_async(reinterpret_cast<float*>(&smem.barrier), p.in, true);
}

GLOBAL void mbarrier_in_written_bytes(const ProbeParams) {
  SHARED(MBarrierSmem, smem);
  if (thread_index() != 0) return;
  smem.values.store(0, 1);
  reinterpret_cast<MBarrier*>(smem.values.address(0))->init(1);
}

GLOBAL void misaligned_mbarrier(const ProbeParams) {
  SHARED(MBarrierSmem, smem);
  if (thread_index() == 0) reinterpret_cast<MBarrier*>(smem.values.address(1))->init(1);
}

GLOBAL void mbarrier_in_global_memory(const ProbeParams p) {
  if (thread_index() == 0) reinterpret_cast<MBarrier*>(p.counters)->init(1);
}

}  // namespace probes
}  // namespace regrow
