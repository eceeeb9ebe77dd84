#pragma once

#include <map>
#include <vector>

#include "emulator/clocks.h"
#include "platform/emulated.h"

namespace regrow::emulator {

// An arrival or a wait: who, when, where in the source.
struct MBarrierEvent {
  int thread;
  bool by_copies;  // an arrival that the thread's copies trigger
  Moment moment;
  Site site;
};

struct MBarrierPhase {
  Clocks::Meeting meeting;              // what those who arrive know
  std::vector<MBarrierEvent> arrivals;  // of threads, and of copies that may still be under way
  std::map<int, MBarrierEvent> waits;   // by thread, its last one
  int num_under_way = 0;                // arrivals by copies that need not have landed
};

// An mbarrier. Phases count from 0; before them lies one that is complete and empty, which new producers wait for.
//
// A phase goes by its parity only, so the three at hand must never be confused, however fast each thread is:
// - whoever arrives in or waits for a phase knows that the one before is complete, or it might meet that one instead;
// - a phase completes after all waits for the one before, or a wait might find itself two phases behind.
// Both are asked of happens-before, not of the order in which this launch ran.
struct MBarrierState {
  int count;
  Site init;
  int64_t phase = 0;  // the one that takes arrivals
  MBarrierPhase before_last, last, now;
  std::vector<int> waiting;           // for `now`: threads to wake
  std::vector<int64_t> known_phases;  // of each thread: a phase that it knows to be complete, as are those before

  bool full() const { return int(now.arrivals.size()) == count; }
};

}  // namespace regrow::emulator
