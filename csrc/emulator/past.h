#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace regrow::emulator {

// How much of what each slot of a block did somebody knows of; see clocks.h.
using Clock = std::shared_ptr<uint32_t[]>;

// What a thread knows of other blocks: a clock for each, null where it knows nothing. Only turns tell a block of
// others, and barriers hand that on within it. A past does not change, so that threads and blocks share it; most know
// of nobody, and their past is null.
using Past = std::shared_ptr<const std::vector<Clock>>;  // by block

// What two who meet know together. Where one knows all, it is that one and not a copy.
Clock join(const Clock& a, const Clock& b, int num_slots);
Past join(const Past& a, const Past& b, int num_slots);

// `past`, but for one block.
Past with(const Past& past, int64_t block, Clock clock);

inline const Clock& clock_of(const Past& past, int64_t block) {
  static const Clock nothing;
  return past && block < int64_t(past->size()) ? (*past)[block] : nothing;
}

}  // namespace regrow::emulator
