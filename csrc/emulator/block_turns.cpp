// How blocks wait for each other. A pass is a write of its counter and a wait a read, in order like any others: a pass
// that may come before a wait for the turn that it ends, or change places with another pass, would leave blocks
// waiting.
#include "emulator/block.h"

namespace regrow::emulator {

int Block::take_ticket(int* counter, Site site) {
  access_global(counter, sizeof(int), Access::kWrite, site, Use::kTicket);
  return (*counter)++;
}

void Block::wait_for_turn(const int* turn, int value, Site site) {
  const auto passed = launch_.turns.find(turn);
  if (passed != launch_.turns.end()) clocks_.learn(thread_, passed->second);
  access_global(turn, sizeof(int), Access::kRead, site, Use::kTurn);
  if (*turn == value) return;
  const Buffer& buffer = launch_.memory.find(turn, sizeof(int), Access::kRead);
  const int64_t byte = reinterpret_cast<const char*>(turn) - buffer.begin;
  throw Failure("deadlock: " + name_of("wait_for_turn", site) + " waits for turn " + std::to_string(value) +
                " at byte " + std::to_string(byte) + " of " + buffer.name + ", which stands at " +
                std::to_string(*turn) + "; only blocks with lower tickets can pass it");
}

void Block::pass_turn(int* turn, int value, Site site) {
  access_global(turn, sizeof(int), Access::kWrite, site, Use::kTurn);
  launch_.turns[turn] = clocks_.hand_on(thread_);
  *turn = value;
}

}  // namespace regrow::emulator
