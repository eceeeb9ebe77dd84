#include "cpu/sort_sources.h"

#include <algorithm>

namespace regrow::cpu {

void sort_sources(const int64_t* index, int64_t num_src_rows, int64_t num_rows, int64_t* start, int64_t* order) {
  std::fill_n(start, num_rows + 1, 0);
  for (int64_t i = 0; i < num_src_rows; ++i) ++start[index[i] + 1];
  int64_t sum = 0;
  for (int64_t r = 1; r <= num_rows; ++r) {  // start[r + 1] becomes the place of row r's next source
    const int64_t count = start[r];
    start[r] = sum;
    sum += count;
  }
  for (int64_t i = 0; i < num_src_rows; ++i) order[start[index[i] + 1]++] = i;
}

}  // namespace regrow::cpu
