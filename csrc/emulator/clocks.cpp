#include "emulator/clocks.h"

#include <algorithm>

namespace regrow::emulator {

Clocks::Clocks(int num_threads)
    : num_threads_(num_threads), threads_(num_threads, Thread{.told = std::make_shared<uint32_t[]>(2 * num_threads)}) {}

void Clocks::release(int thread, Meeting& meeting) {
  Thread& self = threads_[thread];
  if (!meeting.known) meeting.known = std::make_shared<uint32_t[]>(2 * num_threads_);
  uint32_t* known = meeting.known.get();
  if (meeting.last_told != self.told) {
    const uint32_t* told = self.told.get();
    for (int slot = 0; slot < 2 * num_threads_; ++slot) known[slot] = std::max(known[slot], told[slot]);
    meeting.last_told = self.told;
  }
  known[thread] = self.now++;
  known[copy_slot(thread)] = self.landed;
}

void Clocks::copies_landed(int thread, uint32_t copy) {
  threads_[thread].landed = std::max(threads_[thread].landed, copy);
}

}  // namespace regrow::emulator
