// How a block's threads wait for each other: barriers, warp collectives, asynchronous copies.
#include <cstring>

#include "emulator/block.h"

namespace regrow::emulator {

void Block::barrier(const char* what, int id, int num_threads, bool wait, Site site) {
  if (id < 0 || id >= kNumBarriersOfBlock)
    throw Failure(name_of(what, site) + ": barrier " + std::to_string(id) + ", a block has 0 to 15");
  if (id && (num_threads % kWarpLanes || num_threads < kWarpLanes || num_threads > shape_.threads))
    throw Failure(name_of(what, site) + ": " + std::to_string(num_threads) +
                  " threads, must be a multiple of 32 and no more than the block has");
  Barrier& b = barriers_[id];
  if (b.expected == 0) b.expected = num_threads;
  if (b.expected != num_threads)
    throw Failure(name_of(what, site) + ": barrier " + std::to_string(id) + " for " + std::to_string(num_threads) +
                  " threads, others came for " + std::to_string(b.expected));
  // A warp executes a barrier as one.
  b.warp_sites.resize(num_warps());
  std::optional<Site>& first = b.warp_sites[thread_ / kWarpLanes];
  if (!first) first = site;
  if (!same_place(*first, site))
    throw Failure("divergent barrier: " + name_of(what, site) + ", another lane of the warp came to it at " +
                  name_of("", *first));
  clocks_.release(thread_, b.meeting);
  ++b.arrived;
  if (wait) b.waiting.push_back(thread_);
  const bool complete = b.arrived == b.expected;
  if (complete) {
    for (const int waiting : b.waiting) {
      clocks_.acquire(waiting, b.meeting);
      wake(waiting);
    }
    b = Barrier();
  } else if (wait) {
    wait_at(what, site, id);
  }
}

void Block::sync_warp(uint32_t lanes, Site site) {
  struct Operands {
    Block* block;
    int thread;
  } operands = {this, thread_};
  collective(
      "sync_warp", lanes, &operands,
      [](void* const* all) {
        Clocks::Meeting meeting;
        const auto for_each = [&](const auto& f) {
          for (int lane = 0; lane < kWarpLanes; ++lane)
            if (const auto* one = static_cast<const Operands*>(all[lane])) f(one->block->clocks_, one->thread);
        };
        for_each([&](Clocks& clocks, int thread) { clocks.release(thread, meeting); });
        for_each([&](Clocks& clocks, int thread) { clocks.acquire(thread, meeting); });
      },
      site);
}

Collective& Block::join_collective(const char* name, uint32_t lanes, Site site) {
  std::vector<Collective>& pending = collectives_[thread_ / kWarpLanes];
  for (Collective& c : pending) {
    if (!(c.lanes & lanes)) continue;
    if (!same_text(c.name, name) || c.lanes != lanes || !same_place(c.site, site))
      throw Failure("divergent collective: " + name_of(name, site) + ", another lane of the warp is at " +
                    name_of(c.name, c.site) + (c.lanes != lanes ? " for other lanes" : ""));
    return c;
  }
  Collective& c = pending.emplace_back();
  c.name = name;
  c.site = site;
  c.lanes = lanes;
  return c;
}

void Block::collective(const char* name, uint32_t lanes, void* operands, void (*body)(void* const*), Site site) {
  const int lane = thread_ % kWarpLanes, warp = thread_ / kWarpLanes;
  if (!(lanes & own_bit()))
    throw Failure(name_of(name, site) + ": lane " + std::to_string(lane) + " is not in its own mask");
  Collective& c = join_collective(name, lanes, site);
  c.operands[lane] = operands;
  c.arrived |= own_bit();
  if (c.arrived != lanes) return wait_at(name, site);
  ++launch_.report.instructions[name];
  body(c.operands);
  collectives_[warp].erase(collectives_[warp].begin() + (&c - collectives_[warp].data()));
  for (int other = 0; other < kWarpLanes; ++other)
    if (lanes >> other & 1) wake(warp * kWarpLanes + other);
}

namespace {

void land(const Copy& copy) {
  if (copy.global)
    std::memcpy(copy.shared, copy.global, copy.bytes);
  else
    std::memset(copy.shared, 0, copy.bytes);
}

}  // namespace

void Block::copy_async(void* shared, const void* global, int bytes, bool real, Site site) {
  if (real) access_global(global, bytes, Access::kRead, site);
  const Copy copy = {shared, real ? global : nullptr, bytes, clocks_.issue_copy(thread_)};
  write_shared_by_copy(copy.number, shared, bytes, site);
  tally_banks(shared, bytes, site);
  ++launch_.report.async_copies;
  Thread& self = threads_[thread_];
  self.last_copy = copy.number;
  if (launch_.options.landing == Landing::kIssue)
    land(copy);
  else
    self.copies.push_back(copy);
}

void Block::commit_copies() {
  Thread& self = threads_[thread_];
  self.group_lasts.push_back(self.last_copy);
}

void Block::wait_copies(int num_pending) {
  std::vector<uint32_t>& lasts = threads_[thread_].group_lasts;
  const std::ptrdiff_t num_done = std::ptrdiff_t(lasts.size()) - num_pending;
  if (num_done <= 0) return;
  const uint32_t last = lasts[num_done - 1];
  land_copies(thread_, last);
  clocks_.copies_landed(thread_, last);
  lasts.erase(lasts.begin(), lasts.begin() + num_done);
}

void Block::land_copies(int thread, uint32_t up_to) {
  std::vector<Copy>& copies = threads_[thread].copies;
  auto copy = copies.begin();
  for (; copy != copies.end() && copy->number <= up_to; ++copy) land(*copy);
  copies.erase(copies.begin(), copy);
}

}  // namespace regrow::emulator
