#pragma once

#include "platform/memory.h"
#include "tree/plan.h"

namespace regrow {

// A plan in global memory, as device code reads it (PlanView is the host's).
class DevicePlan {
 public:
  DEVICE explicit DevicePlan(const int32_t* words) : words_(words) {}

  DEVICE int32_t field(int32_t PlanHeader::* member AND_CALL_SITE) const {
    return load_global(&(reinterpret_cast<const PlanHeader*>(words_)->*member) AND_SITE);
  }
  // The plan with the tiles of the backward.
  DEVICE DevicePlan backward() const { return DevicePlan(words_ + field(&PlanHeader::backward_plan)); }
  DEVICE BackwardItem backward_item(int64_t i) const { return entry<BackwardItem>(&PlanHeader::backward_items, i); }
  DEVICE const TileRun* backward_runs() const { return section<TileRun>(&PlanHeader::backward_runs); }

  // How many items of the same key tile come after this one.
  DEVICE int later_items(int item) const {
    const int num_items = field(&PlanHeader::num_backward_items), key_tile = backward_item(item).key_tile;
    int next = item + 1;
    while (next < num_items && backward_item(next).key_tile == key_tile) ++next;
    return next - item - 1;
  }

  // How many key tiles that meet this query tile come after this one, which does.
  DEVICE int later_key_tiles(int query_tile, int key_tile) const {
    const int32_t* start = words_ + field(&PlanHeader::forward_start) + query_tile;
    const TileRun* runs = forward_runs();
    int run = load_global(start + 1) - 1;
    const TileRun last = load_global(runs + run);
    TileRun own = last;
    while (own.begin > key_tile) own = load_global(runs + --run);
    return last.ordinal + last.end - last.begin - 1 - (own.ordinal + key_tile - own.begin);
  }

  DEVICE ForwardItem forward_item(int64_t i) const { return entry<ForwardItem>(&PlanHeader::forward_items, i); }
  DEVICE ForwardMerge merge(int64_t i) const {
    const int32_t* at = words_ + field(&PlanHeader::merges) + 3 * i;
    return {load_global(at), load_global(at + 1), load_global(at + 2)};
  }
  DEVICE const TileRun* forward_runs() const { return section<TileRun>(&PlanHeader::forward_runs); }
  // Bit j: some query sees key j of the tile. Tiles of 64 keys.
  DEVICE uint64_t seen_keys(int64_t key_tile) const { return entry<uint64_t>(&PlanHeader::seen_keys, key_tile); }

  // False for a plan of another rectangle, other tiles, or more items than the launch provides for. Another tree of the
  // same size is not noticed here.
  DEVICE bool fits(const Rectangle& r, int queries_of_tile, int keys_of_tile, int max_items) const {
    const bool same_start = r.query_index || field(&PlanHeader::query_start) == r.query_start;
    constexpr int64_t kLongest = 0x7fffffff;  // window of a plan
    return field(&PlanHeader::magic) == kPlanMagic && field(&PlanHeader::num_tokens) == r.num_tokens &&
           field(&PlanHeader::num_queries) == r.num_queries && field(&PlanHeader::num_keys) == r.num_keys &&
           same_start && field(&PlanHeader::key_start) == r.key_start &&
           field(&PlanHeader::window) == (r.window < kLongest ? r.window : kLongest) &&
           field(&PlanHeader::indexed) == (r.query_index != nullptr) &&
           field(&PlanHeader::query_tile) == queries_of_tile && field(&PlanHeader::key_tile) == keys_of_tile &&
           field(&PlanHeader::items) <= max_items;
  }

 private:
  template <class T>
  DEVICE const T* section(int32_t PlanHeader::* offset) const {
    return reinterpret_cast<const T*>(words_ + field(offset));
  }
  template <class T>
  DEVICE T entry(int32_t PlanHeader::* offset, int64_t i) const {
    return load_global(section<T>(offset) + i);
  }

  const int32_t* words_;
};

}  // namespace regrow
