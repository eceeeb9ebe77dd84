#pragma once

// Blocks that take turns: what they add to one place is added in one order, without atomic floats. A block takes a
// ticket and works as if that were its index, so that nothing depends on the order in which blocks start; and waits
// only for what blocks with lower tickets pass: they run or are done, so nobody waits for ever. Counters are int32 in
// global memory, set before the launch, and touched through these functions only.
//
//   const int ticket = take_ticket(p.tickets);                  // one thread
//   if (thread_index() == 0) wait_for_turn(p.turns + m, rank);
//   sync_block();                                               // tells all threads what thread 0 learned
//   ...                                                         // add to tile m
//   sync_block();                                               // tells thread 0 what all threads did
//   if (thread_index() == 0) pass_turn(p.turns + m, rank + 1);
#include "platform/device.h"

namespace regrow {

// 0, 1, 2, ... to whoever asks, with a counter that starts at 0. Orders nothing.
DEVICE int take_ticket(int* counter AND_CALL_SITE) {
#if defined(__CUDACC__)
  int ticket;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(ticket)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return ticket;
#else
  return emulator::take_ticket(counter, site);
#endif
}

// Returns once *turn is exactly `value`: what the thread does from now on comes after all that came before the
// pass_turn that made it so.
DEVICE void wait_for_turn(const int* turn, int value AND_CALL_SITE) {
#if defined(__CUDACC__)
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(__cvta_generic_to_global(turn)) : "memory");
  } while (now != value);
#else
  emulator::wait_for_turn(turn, value, site);
#endif
}

// *turn = value, after all that the thread did, and all that others did before a barrier that both came to. The fence
// is cumulative, as a release is: it covers what the thread has learned of.
DEVICE void pass_turn(int* turn, int value AND_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("fence.acq_rel.gpu;\n\tst.relaxed.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(turn)),
               "r"(value)
               : "memory");
#else
  emulator::pass_turn(turn, value, site);
#endif
}

}  // namespace regrow
