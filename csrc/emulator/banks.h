#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "emulator/sites.h"
#include "platform/device.h"

namespace regrow::emulator {

// Cycles beyond the first that lanes need: 32 banks of 4 bytes, each of which gives one word a cycle. Accesses of 8
// and 16 bytes go by half and quarter warps, which is how the hardware cuts them up. Null: a lane that takes no part.
int64_t extra_cycles(const void* const* addresses, int num_addresses, int bytes);

// Threads reach an instruction one by one; the n-th visit of each lane of a warp belongs to the warp's n-th visit.
class BankTally {
 public:
  explicit BankTally(int num_warps) : num_warps_(num_warps) {}

  void visit(int warp, int lane, Site site, const void* address, int bytes);
  int64_t extra_cycles() const;

 private:
  struct Visit {
    int bytes = 0;
    int num_lanes = 0;
    const void* addresses[kWarpLanes] = {};  // null: the lane has not come
    int64_t extra_cycles() const;
  };
  // One warp at one place.
  struct Visits {
    int of_lane[kWarpLanes] = {};
    int num_complete = 0;    // counted and forgotten: all lanes came
    std::deque<Visit> open;  // those after
  };

  int num_warps_;
  BySite<std::vector<Visits>> places_;  // of each warp
  int64_t extra_cycles_ = 0;            // of complete visits
};

}  // namespace regrow::emulator
