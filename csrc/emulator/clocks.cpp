#include "emulator/clocks.h"

#include <algorithm>

namespace regrow::emulator {

Clocks::Clocks(int num_threads, int64_t block)
    : num_threads_(num_threads),
      block_(block),
      threads_(num_threads, Thread{.told = std::make_shared<uint32_t[]>(2 * num_threads)}) {}

void Clocks::release(int thread, Meeting& meeting) {
  Thread& self = threads_[thread];
  if (!meeting.known) meeting.known = std::make_shared<uint32_t[]>(2 * num_threads_);
  uint32_t* known = meeting.known.get();
  if (meeting.last_told != self.told) {
    const uint32_t* told = self.told.get();
    for (int slot = 0; slot < 2 * num_threads_; ++slot) known[slot] = std::max(known[slot], told[slot]);
    meeting.last_told = self.told;
  }
  if (meeting.past != self.past) meeting.past = join(meeting.past, self.past, 2 * num_threads_);
  known[thread] = self.now++;
  known[copy_slot(thread)] = self.landed;
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
}

void Clocks::copies_landed(int thread, uint32_t copy) {
  threads_[thread].landed = std::max(threads_[thread].landed, copy);
}

}  // namespace regrow::emulator
