#pragma once

#include "kernels/gather_params.h"
#include "platform/memory.h"
#include "platform/require.h"
#include "tile/copy.h"

namespace regrow {

struct ReplayGatherConfig {
  static constexpr int kThreads = 256;
  static constexpr int kUnitsPerLane = 4;   // loads under way at once: 64 bytes a lane
  static constexpr int kMaxRegisters = 40;  // 6 blocks per SM: copies live from loads under way
};

// A team of lanes copies kUnitsPerLane units each of one row; the grid's y goes along the row. `Unit` is the widest
// access that addresses and sizes allow.
template <class Unit>
GLOBAL void LAUNCH_BOUNDS(ReplayGatherConfig::kThreads) replay_gather(const GatherParams p, const int team_lanes) {
  constexpr int kUnits = ReplayGatherConfig::kUnitsPerLane;
  const int64_t row = block_index() * (ReplayGatherConfig::kThreads / team_lanes) + thread_index() / team_lanes;
  if (row >= p.num_rows) return;
  const int64_t units = p.row_bytes / int64_t(sizeof(Unit));
  const int64_t src_row = load_global(p.index + row);
  require(src_row >= 0 && src_row < p.num_src_rows,
          "replay_gather: index must be in [0, rows of src): look at index.min() and .max()");
  const char* from = static_cast<const char*>(p.src) + src_row * p.src_stride;
  char* to = static_cast<char*>(p.out) + row * p.row_bytes;
  const int64_t first = int64_t(block_index_y()) * team_lanes * kUnits + thread_index() % team_lanes;

  Unit copied[kUnits];
  UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int64_t unit = first + i * team_lanes;
    if (unit < units) copied[i] = load_global(reinterpret_cast<const Unit*>(from) + unit);
  }
  UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int64_t unit = first + i * team_lanes;
    if (unit < units) store_global(reinterpret_cast<Unit*>(to) + unit, copied[i]);
  }
}

// launch(shape, kernel, p, team_lanes) with the instantiation that p asks for.
template <class Launch>
void dispatch_replay_gather(const GatherParams& p, const Launch& launch) {
  if (p.num_rows == 0 || p.row_bytes == 0) return;
  const int64_t together =
      reinterpret_cast<intptr_t>(p.src) | reinterpret_cast<intptr_t>(p.out) | p.src_stride | p.row_bytes;
  const auto with_unit = [&](auto unit) {
    using Unit = decltype(unit);
    constexpr int kThreads = ReplayGatherConfig::kThreads, kUnits = ReplayGatherConfig::kUnitsPerLane;
    const int64_t units = p.row_bytes / int64_t(sizeof(Unit));
    int team_lanes = 1;
    while (team_lanes < kThreads && team_lanes * kUnits < units) team_lanes *= 2;
    const int64_t rows_per_block = kThreads / team_lanes, units_per_block = int64_t(team_lanes) * kUnits;
    const LaunchShape shape = {.blocks = (p.num_rows + rows_per_block - 1) / rows_per_block,
                               .blocks_y = int((units + units_per_block - 1) / units_per_block),
                               .threads = kThreads};
    launch(shape, &replay_gather<Unit>, p, team_lanes);
  };
  if (together % 16 == 0) return with_unit(Vector16());
  if (together % 4 == 0) return with_unit(uint32_t());
  with_unit(uint8_t());
}

}  // namespace regrow
