#pragma once

// Barriers in shared memory that threads and copies arrive at one by one. Each phase takes `count` arrivals, then the
// next begins; a wait names the phase that it waits for by its parity, so nobody may be two phases behind. A stage of a
// pipeline has two of them:
//
//   smem.empty[s].wait(~round & 1);        // passes at once in round 0: the phase before the first has parity 1
//   copy_async16(...);                     // threads that copy
//   smem.full[s].arrive_after_copies();
//
//   smem.full[s].wait(round & 1);          // threads that read
//   ...
//   smem.empty[s].arrive();
#include "platform/device.h"

// sm_80 has no wait that suspends the thread: it asks again and again.
#if defined(__CUDACC__)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define REGROW_MBARRIER_ASK "mbarrier.test_wait.parity.shared::cta.b64"
#else
#define REGROW_MBARRIER_ASK "mbarrier.try_wait.parity.shared::cta.b64"
#endif
#endif

namespace regrow {

// A member of some Smem.
struct alignas(8) MBarrier {
  // By one thread, once; a barrier of the block before anybody uses it. `count` is 1 to 2^20 - 1.
  DEVICE void init(int count AND_CALL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
#else
    emulator::mbarrier_init(this, count, site);
#endif
  }

  // One arrival: what this thread did before is seen by those that wait for the phase (release at block scope).
  DEVICE void arrive(CALL_SITE) {
#if defined(__CUDACC__)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
#else
    emulator::mbarrier_arrive(this, site);
#endif
  }

  // One arrival, once all asynchronous copies that this thread has issued have landed; does not wait for them. Those
  // that wait for the phase see the copies, but not what this thread itself stored: that takes an arrive().
  DEVICE void arrive_after_copies(CALL_SITE) {
#if defined(__CUDACC__)
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
#else
    emulator::mbarrier_arrive_after_copies(this, site);
#endif
  }

  // Returns once the phase of this parity (0 or 1) is the last complete one (acquire at block scope).
  DEVICE void wait(int parity AND_CALL_SITE) const {
#if defined(__CUDACC__)
    uint32_t complete;
    do {
      asm volatile("{\n\t.reg .pred p;\n\t" REGROW_MBARRIER_ASK " p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                   : "=r"(complete)
                   : "r"(address()), "r"(parity)
                   : "memory");
    } while (!complete);
#else
    emulator::mbarrier_wait(this, parity, site);
#endif
  }

#if defined(__CUDACC__)
  DEVICE uint32_t address() const { return uint32_t(__cvta_generic_to_shared(this)); }
#endif

  uint64_t state;
};

// By the thread that initialised, before the barrier of the block or cluster: shows the new mbarriers to the async
// proxy (TMA) and to the other blocks of the cluster. The threads of the block need only the barrier. sm_80 has
// neither.
DEVICE void fence_mbarrier_init() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace regrow

#undef REGROW_MBARRIER_ASK
