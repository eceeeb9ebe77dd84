#include "emulator/clocks.h"

namespace regrow::emulator {

Clocks::Clocks(int num_threads, int64_t block)
    : num_threads_(num_threads),
      block_(block),
      threads_(num_threads, Thread{.told = std::make_shared<uint32_t[]>(2 * num_threads)}) {}

// What it was told.
void Clocks::tell(Meeting& meeting, const Thread& self) const {
  if (!meeting.known) meeting.known = std::make_shared<uint32_t[]>(2 * num_threads_);
  uint32_t* known = meeting.known.get();
  if (meeting.last_told != self.told) {
    const uint32_t* told = self.told.get();
    for (int slot = 0; slot < 2 * num_threads_; ++slot) known[slot] = std::max(known[slot], told[slot]);
    meeting.last_told = self.told;
  }
  if (meeting.past != self.past) meeting.past = join(meeting.past, self.past, 2 * num_threads_);
}

void Clocks::release(int thread, Meeting& meeting) {
  Thread& self = threads_[thread];
  tell(meeting, self);
  uint32_t* known = meeting.known.get();
  known[thread] = self.now++;
  known[copy_slot(thread)] = std::max(known[copy_slot(thread)], self.landed);
}

uint32_t Clocks::release_copies(int thread, Meeting& meeting) {
  tell(meeting, threads_[thread]);
  return meeting.known[copy_slot(thread)] = issue_copy(thread);
}

void Clocks::learn(int thread, const Meeting& meeting) {
  Thread& self = threads_[thread];
  self.told = join(self.told, meeting.known, 2 * num_threads_);
  self.past = join(self.past, meeting.past, 2 * num_threads_);
  hear_of_own_copies(thread);
}

Past Clocks::hand_on(int thread) {
  Meeting meeting;
  release(thread, meeting);
  return with(meeting.past, block_, meeting.known);
}

void Clocks::learn(int thread, const Past& past) {
  Thread& self = threads_[thread];
  self.past = join(self.past, past, 2 * num_threads_);
  self.told = join(self.told, clock_of(past, block_), 2 * num_threads_);  // a block may pass a turn to itself
  hear_of_own_copies(thread);
}

void Clocks::copies_landed(int thread, uint32_t copy) {
  threads_[thread].landed = std::max(threads_[thread].landed, copy);
}

}  // namespace regrow::emulator
