#pragma once

#include <vector>

#include "tree/plan.h"

namespace regrow {

// The keys of a rectangle that no query of it sees. They may hold anything, NaN too: kernels read them as zero.
std::vector<KeyInterval> unseen_keys(const Rectangle& rectangle);

}  // namespace regrow
