#pragma once

#include <cstdint>
#include <vector>

#include "tree/rectangle.h"

namespace regrow {

// The keys that some query of the rectangle sees. The others may hold anything, NaN too: kernels read them as zero.
struct SeenKeys {
  std::vector<int32_t> bits;  // key j is bit j % 32 of word j / 32
  int64_t num_unseen;
};

// `num_bits`, a multiple of 32, is at least the number of keys; bits beyond are 0.
SeenKeys seen_keys(const Rectangle& rectangle, int64_t num_bits);

}  // namespace regrow
