#include "emulator/past.h"

#include <algorithm>
#include <utility>

namespace regrow::emulator {

Clock join(const Clock& a, const Clock& b, int num_slots) {
  if (a == b || !b) return a;
  if (!a) return b;
  bool a_knows_all = true, b_knows_all = true;
  for (int slot = 0; slot < num_slots; ++slot) {
    a_knows_all &= a[slot] >= b[slot];
    b_knows_all &= b[slot] >= a[slot];
  }
  if (a_knows_all) return a;
  if (b_knows_all) return b;
  Clock both = std::make_shared<uint32_t[]>(num_slots);
  for (int slot = 0; slot < num_slots; ++slot) both[slot] = std::max(a[slot], b[slot]);
  return both;
}

Past join(const Past& a, const Past& b, int num_slots) {
  if (a == b || !b) return a;
  if (!a) return b;
  std::vector<Clock> both(std::max(a->size(), b->size()));
  for (size_t block = 0; block < both.size(); ++block)
    both[block] = join(clock_of(a, block), clock_of(b, block), num_slots);
  return std::make_shared<const std::vector<Clock>>(std::move(both));
}

Past with(const Past& past, int64_t block, Clock clock) {
  std::vector<Clock> all = past ? *past : std::vector<Clock>();
  all.resize(std::max(all.size(), size_t(block) + 1));
  all[block] = std::move(clock);
  return std::make_shared<const std::vector<Clock>>(std::move(all));
}

}  // namespace regrow::emulator
