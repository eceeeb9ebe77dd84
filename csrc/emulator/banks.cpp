#include "emulator/banks.h"

#include <algorithm>

namespace regrow::emulator {

int64_t extra_cycles(const void* const* addresses, int num_addresses, int bytes) {
  constexpr int kBanks = 32, kWordBytes = 4;
  const int together = kBanks * kWordBytes / std::max(bytes, kWordBytes);  // lanes that can be served in one cycle
  int64_t extra = 0;
  for (int begin = 0; begin < num_addresses; begin += together) {
    uintptr_t words[kBanks][kBanks];
    int cycles[kBanks] = {};
    for (int i = begin; i < std::min(begin + together, num_addresses); ++i) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(addresses[i]) / kWordBytes;
      for (uintptr_t word = first; word < first + std::max(1, bytes / kWordBytes); ++word) {
        uintptr_t* bank = words[word % kBanks];
        int& used = cycles[word % kBanks];
        if (std::find(bank, bank + used, word) == bank + used) bank[used++] = word;  // lanes share a word
      }
    }
    extra += *std::max_element(cycles, cycles + kBanks) - 1;
  }
  return extra;
}

void BankTally::visit(int warp, int lane, Site site, const void* address, int bytes) {
  const Place place = {site.file_name(), int(site.line()), int(site.column())};
  const int number = visits_of_lane_[{place, warp, lane}]++;
  Visit& visit = visits_[{place, warp, number}];
  visit.bytes = bytes;
  visit.addresses.resize(32, nullptr);
  visit.addresses[lane] = address;
}

int64_t BankTally::extra_cycles() const {
  int64_t extra = 0;
  for (const auto& [key, visit] : visits_) {
    std::vector<const void*> present;
    for (const void* address : visit.addresses)
      if (address) present.push_back(address);
    extra += emulator::extra_cycles(present.data(), int(present.size()), visit.bytes);
  }
  return extra;
}

}  // namespace regrow::emulator
