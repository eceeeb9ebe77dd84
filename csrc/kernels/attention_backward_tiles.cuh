#pragma once

// What one block of the backward works on: its item, query tiles one after the other, and sums in memory.
#include "kernels/attention_tiles.cuh"
#include "platform/turns.h"

namespace regrow {

// The item of a block, in shared memory: what is asked for now and then takes no register.
struct BlockItem {
  enum Field { kPlan, kIndex, kKeyTile, kKvHead, kRunBegin, kRunEnd, kRank, kNumFields };
  SharedArray<int, kNumFields> fields;

  // By one thread. kIndex is negative where the tickets exceed the items; runs count from the first word of the plan.
  DEVICE void take(const int32_t* words, int* tickets, int kv_heads) {
    const DevicePlan plan = DevicePlan(words).backward();
    const int first_run = int(plan.backward_runs() - reinterpret_cast<const TileRun*>(words));
    const int ticket = take_ticket(tickets);
    const int index = plan.field(&PlanHeader::num_backward_items) - 1 - ticket / kv_heads;
    fields.store(kIndex, index);
    if (index < 0) return;
    const BackwardItem item = plan.backward_item(index);
    fields.store(kPlan, DevicePlan(words).field(&PlanHeader::backward_plan));
    fields.store(kKeyTile, item.key_tile);
    fields.store(kKvHead, ticket % kv_heads);
    fields.store(kRunBegin, first_run + item.run_begin);
    fields.store(kRunEnd, first_run + item.run_end);
  }
  DEVICE int operator[](Field field) const { return fields.load(field); }
};

template <int kRows, bool kGeneral>
struct BackwardRows {
  SharedArray<int, 2> tile_and_unit;  // whose rows they are
  SharedArray<int, 1> rank;           // how many blocks add to their dq before this one
  SharedArray<float, kRows> lse_log2, delta;
  QueryPlaces<kRows, kGeneral> places;
};

// The query tiles of an item, each for every unit of the group. Little is kept in registers, and the rest asked again.
class QueryTileWalk {
 public:
  DEVICE QueryTileWalk(const int32_t* plan, const BlockItem& item, int units)
      : runs_(reinterpret_cast<const TileRun*>(plan)), item_(item), units_(units), run_(item[BlockItem::kRunBegin]) {
    if (!done()) tile_ = run().begin;
  }
  DEVICE bool done() const { return run_ >= item_[BlockItem::kRunEnd]; }
  DEVICE void advance() {
    if (++unit_ < units_) return;
    unit_ = 0;
    if (++tile_ < run().end) return;
    ++run_;
    if (!done()) tile_ = run().begin;
  }
  DEVICE int tile() const { return tile_; }
  DEVICE int unit() const { return unit_; }  // of the group
  DEVICE bool partial() const { return run().partial; }

 private:
  DEVICE TileRun run() const { return load_global(runs_ + run_); }

  const TileRun* runs_;
  const BlockItem& item_;
  int units_, run_, tile_ = 0, unit_ = 0;
};

// Two neighbouring columns of fp32 sums.
struct alignas(8) SumPair {
  float first, second;
};

// Adds a warp's 16 rows to fp32 sums in memory, row_of(half) being the thread's rows there. Of 64 columns of a row all
// loads come before all stores: one after the other they would each wait for the L2, and more have no registers.
template <int kBlocks, class RowOf>
DEVICE void add_rows(const FragmentC (&sums)[kBlocks], float factor, int first_column, int num_columns,
                     const RowOf& row_of) {
  constexpr int kTogether = kBlocks < 8 ? kBlocks : 8;
  UNROLL
  for (int half = 0; half < 2; ++half) {
    float* row = row_of(half);
    if (!row) continue;
    SumPair* pairs = reinterpret_cast<SumPair*>(row + first_column) + lane_index() % 4;
    UNROLL
    for (int first = 0; first < kBlocks; first += kTogether) {
      SumPair before[kTogether] = {};
      UNROLL
      for (int n = 0; n < kTogether; ++n)
        if (first_column + 8 * (first + n) < num_columns) before[n] = load_global(pairs + 4 * (first + n));
      UNROLL
      for (int n = 0; n < kTogether; ++n) {
        const float (&values)[4] = sums[first + n].values;
        if (first_column + 8 * (first + n) < num_columns)
          store_global(pairs + 4 * (first + n), SumPair{before[n].first + values[2 * half] * factor,
                                                        before[n].second + values[2 * half + 1] * factor});
      }
    }
  }
}

}  // namespace regrow
