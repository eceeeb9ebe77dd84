#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "platform/emulated.h"

namespace regrow::emulator {

// Cycles beyond the first that lanes need: 32 banks of 4 bytes, each of which gives one word a cycle. Accesses of 8
// and 16 bytes go by half and quarter warps, which is how the hardware cuts them up.
int64_t extra_cycles(const void* const* addresses, int num_addresses, int bytes);

// Threads reach an instruction one by one; the n-th visit of each lane of a warp belongs to the warp's n-th visit.
class BankTally {
 public:
  void visit(int warp, int lane, Site site, const void* address, int bytes);
  int64_t extra_cycles() const;

 private:
  using Place = std::tuple<const char*, int, int>;  // file, line, column
  struct Visit {
    int bytes = 0;
    std::vector<const void*> addresses;
  };
  std::map<std::tuple<Place, int, int>, int> visits_of_lane_;  // place, warp, lane
  std::map<std::tuple<Place, int, int>, Visit> visits_;        // place, warp, number of the visit
};

}  // namespace regrow::emulator
