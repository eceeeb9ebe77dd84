#include "emulator/banks.h"

#include <algorithm>

namespace regrow::emulator {

int64_t extra_cycles(const void* const* addresses, int num_addresses, int bytes) {
  constexpr int kBanks = 32, kWordBytes = 4;
  const int together = kBanks * kWordBytes / std::max(bytes, kWordBytes);  // lanes that can be served in one cycle
  int64_t extra = 0;
  for (int begin = 0; begin < num_addresses; begin += together) {
    std::vector<uintptr_t> words[kBanks];  // lanes that read the same word share it
    for (int i = begin; i < std::min(begin + together, num_addresses); ++i) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(addresses[i]) / kWordBytes;
      for (int word = 0; word < std::max(1, bytes / kWordBytes); ++word) {
        std::vector<uintptr_t>& bank = words[(first + word) % kBanks];
        if (std::ranges::find(bank, first + word) == bank.end()) bank.push_back(first + word);
      }
    }
    size_t cycles = 1;
    for (const auto& bank : words) cycles = std::max(cycles, bank.size());
    extra += int64_t(cycles) - 1;
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
