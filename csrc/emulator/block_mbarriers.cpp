// mbarriers: platform/mbarrier.h. An arrival by copies counts from its issue, but lands as late as it may where the
// launch says so: when somebody waits for the phase that it completes, or the next phase begins.
#include <algorithm>

#include "emulator/block.h"

namespace regrow::emulator {
namespace {

constexpr int kMaxCount = (1 << 20) - 1;

std::string at_byte(int64_t byte) { return " the mbarrier at byte " + std::to_string(byte) + " of shared memory"; }

// "thread 3 arrived in phase 2 at a.cuh:3:5 ", which is followed by more.
std::string deed(const MBarrierEvent& event, const char* what, int64_t phase) {
  return "thread " + std::to_string(event.thread) + what + std::to_string(phase) + " at " + name_of("", event.site);
}

}  // namespace

// Its bytes hold nothing here; what touches them otherwise is reported.
int64_t Block::touch_mbarrier(const void* address, Access access, Site site) {
  access_shared(own_bit(), address, sizeof(uint64_t), access, site, Use::kMBarrier);
  return byte_of_shared(address);
}

MBarrierState& Block::find_mbarrier(const char* what, const void* address, Site site) {
  const int64_t byte = touch_mbarrier(address, Access::kRead, site);
  const auto found = mbarriers_.find(byte);
  if (found == mbarriers_.end()) throw Failure(name_of(what, site) + ":" + at_byte(byte) + " was not initialised");
  return found->second;
}

void Block::init_mbarrier(const void* address, int count, Site site) {
  if (count < 1 || count > kMaxCount)
    throw Failure(name_of("mbarrier_init", site) + ": " + std::to_string(count) + " arrivals, must be 1 to 1048575");
  const auto [place, is_new] =
      mbarriers_.try_emplace(byte_of_shared(address), MBarrierState{.count = count, .init = site});
  if (!is_new)
    throw Failure(name_of("mbarrier_init", site) + ":" + at_byte(place->first) + " was initialised at " +
                  name_of("", place->second.init));
  touch_mbarrier(address, Access::kWrite, site);
  place->second.known_phases.assign(shape_.threads, -1);
}

bool Block::knows_complete(MBarrierState& b, const MBarrierPhase& phase, int64_t number,
                           const MBarrierEvent** unknown) {
  int64_t& known = b.known_phases[thread_];
  for (const MBarrierEvent& arrival : phase.arrivals) {
    if (known >= number) break;
    if (!clocks_.knows(thread_, arrival.thread, arrival.moment, arrival.by_copies)) return *unknown = &arrival, false;
  }
  known = std::max(known, number);
  return true;
}

void Block::arrive_at_mbarrier(const char* what, const void* address, bool by_copies, Site site) {
  MBarrierState& b = find_mbarrier(what, address, site);
  if (b.full()) complete_phase(b);  // its last arrivals are by copies: they land before the next phase begins
  const MBarrierEvent* earlier = nullptr;
  if (!knows_complete(b, b.last, b.phase - 1, &earlier))
    throw Failure("too many arrivals: " + name_of(what, site) + " in phase " + std::to_string(b.phase) + " of" +
                  at_byte(byte_of_shared(address)) + ", for " + std::to_string(b.count) + " arrivals; " +
                  deed(*earlier, " arrived in phase ", b.phase - 1) + "and nothing orders the two");
  b.now.arrivals.push_back({thread_, by_copies, clocks_.moment(thread_), site});
  if (by_copies)
    b.now.arrivals.back().moment.copy = clocks_.release_copies(thread_, b.now.meeting);
  else
    clocks_.release(thread_, b.now.meeting);
  const bool lands_late = by_copies && launch_.options.landing == Landing::kWait;
  b.now.num_under_way += lands_late;
  if (b.full() && (!b.now.num_under_way || !b.waiting.empty())) complete_phase(b);
}

void Block::complete_phase(MBarrierState& b) {
  for (const auto& [thread, wait] : b.last.waits)
    if (!b.now.meeting.knows(clocks_, thread, wait.moment)) {
      const MBarrierEvent& arrival = b.now.arrivals.back();
      throw Failure("race: " + deed(arrival, " arrives last in phase ", b.phase) + "of an mbarrier initialised at " +
                    name_of("", b.init) + "; " + deed(wait, " waited for phase ", b.phase - 1) +
                    "and nothing orders the two: it may find itself two phases behind");
    }
  for (const MBarrierEvent& arrival : b.now.arrivals)
    if (arrival.by_copies) land_copies(arrival.thread, arrival.moment.copy);
  b.before_last = std::move(b.last);
  b.last = std::move(b.now);
  b.now = MBarrierPhase();
  ++b.phase;
  for (const int thread : b.waiting) {
    pass_mbarrier(b, thread, threads_[thread].waiting_at);
    wake(thread);
  }
  b.waiting.clear();
}

void Block::pass_mbarrier(MBarrierState& b, int thread, Site site) {
  clocks_.learn(thread, b.last.meeting);
  b.known_phases[thread] = b.phase - 1;
  b.last.waits[thread] = {thread, false, clocks_.moment(thread), site};
}

void Block::wait_at_mbarrier(const void* address, int parity, Site site) {
  constexpr const char* kWhat = "mbarrier_wait";
  if (parity != 0 && parity != 1)
    throw Failure(name_of(kWhat, site) + ": parity " + std::to_string(parity) + ", must be 0 or 1");
  MBarrierState& b = find_mbarrier(kWhat, address, site);
  const bool waits = (b.phase & 1) == parity;
  const int64_t wanted = waits ? b.phase : b.phase - 1;
  const MBarrierEvent* earlier = nullptr;
  if (!knows_complete(b, waits ? b.last : b.before_last, wanted - 1, &earlier))
    throw Failure("race: " + name_of(kWhat, site) + " for parity " + std::to_string(parity) + " meets phase " +
                  std::to_string(wanted) + " of" + at_byte(byte_of_shared(address)) + "; " +
                  deed(*earlier, " arrived in phase ", wanted - 1) +
                  "and nothing orders the two: it may be meant for phase " + std::to_string(wanted - 2) +
                  ", or meet that");
  if (!waits) return pass_mbarrier(b, thread_, site);
  b.waiting.push_back(thread_);
  threads_[thread_].waiting_at = site;
  if (b.full()) return complete_phase(b);
  wait_at(kWhat, site, 0, byte_of_shared(address));
}

std::string Block::describe_mbarrier(int64_t byte) const {
  const MBarrierState& b = mbarriers_.at(byte);
  return "for phase " + std::to_string(b.phase) + " of" + at_byte(byte) + ", which has " +
         std::to_string(b.now.arrivals.size()) + " of " + std::to_string(b.count) + " arrivals";
}

void Block::finish_mbarriers() {
  for (auto& [byte, b] : mbarriers_) {
    if (b.full()) complete_phase(b);
    if (!b.now.arrivals.empty())
      throw Failure(
          "returned with " + std::to_string(b.now.arrivals.size()) + " of " + std::to_string(b.count) +
          " arrivals in phase " + std::to_string(b.phase) + " of" + at_byte(byte) +
          ", for which nobody waited; the last: " + deed(b.now.arrivals.back(), " arrived in phase ", b.phase));
  }
}

}  // namespace regrow::emulator
