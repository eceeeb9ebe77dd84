#pragma once

#include <cstdint>

namespace regrow::cpu {

// start [num_rows + 1] and order [num_src_rows] of ScatterParams: a counting sort. index [num_src_rows] in [0,
// num_rows).
void sort_sources(const int64_t* index, int64_t num_src_rows, int64_t num_rows, int64_t* start, int64_t* order);

}  // namespace regrow::cpu
