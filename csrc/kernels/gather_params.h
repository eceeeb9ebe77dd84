#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace regrow {

// out[i] = src[index[i]], rows of row_bytes bytes.
struct GatherParams {
  const void* src;       // [num_src_rows, row], src_stride bytes apart
  const int64_t* index;  // [num_rows] in [0, num_src_rows)
  void* out;             // [num_rows, row]
  int64_t num_src_rows, num_rows;
  int64_t src_stride;  // bytes
  int64_t row_bytes;
};

// out[r] = sum of src[i] over index[i] == r, in order of i.
struct ScatterParams {
  const void* src;  // [num_src_rows, row_size], src_stride elements apart
  // A stable sort of the sources by destination: row r's are order[start[r]] .. order[start[r + 1] - 1].
  const int64_t* start;  // [num_rows + 1]
  const int64_t* order;  // [num_src_rows]
  void* out;             // [num_rows, row_size]
  int64_t num_src_rows, num_rows;
  int64_t src_stride;  // elements
  int64_t row_size;    // elements
  DType dtype;
};

}  // namespace regrow
