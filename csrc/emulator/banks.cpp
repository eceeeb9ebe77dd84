#include "emulator/banks.h"

#include <algorithm>
#include <bit>

namespace regrow::emulator {
namespace {

constexpr int kBanks = 32, kWordBytes = 4;

// Most accesses are free of conflicts, and this is how it shows soonest: no two lanes share a bank.
bool all_in_own_banks(const void* const* addresses, int num_addresses, int bytes) {
  const int shift = std::countr_zero(uint32_t(bytes)), together = kBanks * kWordBytes >> shift;
  uint32_t taken = 0;
  for (int i = 0; i < num_addresses; ++i) {
    if (!addresses[i]) continue;
    const uint32_t bit = uint32_t(1) << (reinterpret_cast<uintptr_t>(addresses[i]) >> shift & (together - 1));
    if (taken & bit) return false;
    taken |= bit;
  }
  return true;
}

}  // namespace

int64_t extra_cycles(const void* const* addresses, int num_addresses, int bytes) {
  const int together = kBanks * kWordBytes / std::max(bytes, kWordBytes);  // lanes that can be served in one cycle
  int64_t extra = 0;
  for (int begin = 0; begin < num_addresses; begin += together) {
    const int end = std::min(begin + together, num_addresses);
    if (bytes >= kWordBytes && all_in_own_banks(addresses + begin, end - begin, bytes)) continue;
    uintptr_t words[kBanks][kBanks];
    int cycles[kBanks] = {};
    for (int i = begin; i < end; ++i) {
      if (!addresses[i]) continue;
      const uintptr_t first = reinterpret_cast<uintptr_t>(addresses[i]) / kWordBytes;
      for (uintptr_t word = first; word < first + std::max(1, bytes / kWordBytes); ++word) {
        uintptr_t* bank = words[word % kBanks];
        int& used = cycles[word % kBanks];
        if (std::find(bank, bank + used, word) == bank + used) bank[used++] = word;  // lanes share a word
      }
    }
    extra += std::max(1, *std::max_element(cycles, cycles + kBanks)) - 1;
  }
  return extra;
}

void BankTally::visit(int warp, int lane, Site site, const void* address, int bytes) {
  Visits& visits = places_.at("", site, [&] { return std::vector<Visits>(num_warps_); })[warp];
  const size_t number = visits.of_lane[lane]++ - visits.num_complete;
  if (number == visits.open.size()) visits.open.emplace_back();
  Visit& visit = visits.open[number];
  visit.bytes = bytes;
  visit.addresses[lane] = address;
  if (++visit.num_lanes < kWarpLanes) return;
  // Lanes visit in order, so none is complete before those that were before it.
  extra_cycles_ += visit.extra_cycles();
  visits.open.pop_front();
  ++visits.num_complete;
}

int64_t BankTally::Visit::extra_cycles() const { return emulator::extra_cycles(addresses, kWarpLanes, bytes); }

int64_t BankTally::extra_cycles() const {
  int64_t extra = extra_cycles_;
  for (const auto& place : places_.entries())
    for (const Visits& visits : place.value)
      for (const Visit& visit : visits.open) extra += visit.extra_cycles();
  return extra;
}

}  // namespace regrow::emulator
