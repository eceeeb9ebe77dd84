#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulator/past.h"

namespace regrow::emulator {

// In a thread's program order. Whoever knows of a later copy of the thread knows that the moment is past, though not of
// what the thread itself did before it.
struct Moment {
  uint32_t clock;
  uint32_t copy;  // the number of its next copy
};

// Happens-before, as vector clocks. Thread t of a block of n acts under slot t, its asynchronous copies under slot
// n + t. A thread knows of a slot how much of what it did barriers and waits have told the thread of.
//
// All who leave a barrier know the same, but for what they do themselves: they share one clock, and a barrier costs a
// pass over the slots for each clock that comes to it, not for each thread. What turns tell of other blocks (past.h)
// comes along.
class Clocks {
 public:
  // What those who came to a barrier know together.
  struct Meeting {
    Clock known;
    Clock last_told;  // what the one before came with, which need not be added again
    Past past;

    bool knows(const Clocks& clocks, int thread, const Moment& moment) const {
      return known[thread] >= moment.clock || known[clocks.copy_slot(thread)] >= moment.copy;
    }
  };

  Clocks(int num_threads, int64_t block);

  int num_threads() const { return num_threads_; }
  int copy_slot(int thread) const { return num_threads_ + thread; }
  int thread_of(int slot) const { return slot < num_threads_ ? slot : slot - num_threads_; }

  uint32_t now(int thread) const { return threads_[thread].now; }

  // Has the thread been told of what `slot` did at `clock`?
  bool knows(int thread, int slot, uint32_t clock) const {
    const Thread& t = threads_[thread];
    if (slot == thread) return true;
    return clock <= (slot == copy_slot(thread) ? t.landed : t.told[slot]);
  }

  Moment moment(int thread) const { return {threads_[thread].now, threads_[thread].issued + 1}; }

  // Does the thread know that a moment of another one is past, or, `by_copies`, that the copy has landed?
  bool knows(int thread, int other, const Moment& moment, bool by_copies) const {
    return (!by_copies && knows(thread, other, moment.clock)) || knows(thread, copy_slot(other), moment.copy);
  }

  // And of what a slot of another block did?
  bool knows_of(int64_t block, int thread, int slot, uint32_t clock) const {
    const Clock& known = clock_of(threads_[thread].past, block);
    return known && clock <= known[slot];
  }

  // `meeting` learns all that the thread knows and did; what the thread does from now on is later.
  void release(int thread, Meeting& meeting);
  // The thread, which released into `meeting`, learns what all who did so know.
  void acquire(int thread, const Meeting& meeting) {
    threads_[thread].told = meeting.known;
    threads_[thread].past = meeting.past;
    hear_of_own_copies(thread);
  }

  // `meeting` learns what the thread's copies so far did and what it had been told when it issued the last, but not
  // what it did itself. Returns the number of a copy that stands for their arrival.
  uint32_t release_copies(int thread, Meeting& meeting);
  // The thread, which need not have released into `meeting`, learns what all who did so know.
  void learn(int thread, const Meeting& meeting);

  // All that the thread knows and did, for the block that it passes a turn to; what it does from now on is later.
  Past hand_on(int thread);
  // The thread learns what a turn handed on.
  void learn(int thread, const Past& past);

  // The number of a new copy of the thread's, and news that those up to a number have landed.
  uint32_t issue_copy(int thread) { return ++threads_[thread].issued; }
  void copies_landed(int thread, uint32_t copy);

 private:
  struct Thread {
    Clock told;  // by its last barrier; out of date in the thread's own two slots
    Past past;
    uint32_t now = 1;     // the thread's own slot
    uint32_t landed = 0;  // its copies' slot
    uint32_t issued = 0;
  };

  void tell(Meeting& meeting, const Thread& thread) const;
  void hear_of_own_copies(int thread) {
    Thread& self = threads_[thread];
    self.landed = std::max(self.landed, self.told[copy_slot(thread)]);
  }

  int num_threads_;
  int64_t block_;
  std::vector<Thread> threads_;
};

}  // namespace regrow::emulator
