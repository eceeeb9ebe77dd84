#pragma once

// Small kernels that prove the emulator: right ones, whose every synchronisation point matters, and wrong ones, each
// with one error that must be reported. Blocks have 64 threads; `in` and `out` have 64 floats.
#include "platform/memory.h"
#include "platform/numbers.h"
#include "platform/sync.h"
#include "tile/copy.h"
#include "tile/mma.h"

namespace regrow {

struct ProbeParams {
  const float* in;
  float* out;
  int* counters;  // zeros, 64 as well
};

constexpr int kProbeThreads = 64;

struct ProbeSmem {
  alignas(16) SharedArray<float, kProbeThreads> values;
};

struct TileSmem {
  SharedTile<bf16, 8, 64> tile;
};

namespace probes {

GLOBAL void reverse_by_block(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  const int thread = thread_index();
  smem.values.store(thread, load_global(p.in + thread));
  sync_block();
  const float reversed = smem.values.load(63 - thread);
  sync_block();
  smem.values.store(thread, reversed + 1);
  sync_block();
  store_global(p.out + 63 - thread, smem.values.load(63 - thread));
}

GLOBAL void reverse_by_warp(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  const int thread = thread_index(), other = thread ^ 31;
  smem.values.store(thread, load_global(p.in + thread));
  sync_warp();
  store_global(p.out + thread, smem.values.load(other));
}

// Warp 0 fills the array twice; warp 1 empties it.
GLOBAL void producer_consumer(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  constexpr int kFull = 1, kEmpty = 2;
  for (int round = 0; round < 2; ++round) {
    const int at = round * 32 + lane_index();
    if (warp_index() == 0) {
      if (round > 0) sync_named(kEmpty, 64);
      smem.values.store(lane_index(), load_global(p.in + at));
      arrive_named(kFull, 64);
    } else {
      sync_named(kFull, 64);
      store_global(p.out + at, smem.values.load(31 - lane_index()));
      if (round == 0) arrive_named(kEmpty, 64);
    }
  }
}

GLOBAL void copy_through_shared(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  const int thread = thread_index();
  for (int round = 0; round < 2; ++round) {
    if (thread < 16) copy_async16(smem.values.data + thread * 4, p.in + (15 - thread) * 4, round == 0 || thread < 8);
    commit_copies();
    wait_copies<0>();
    sync_block();
    const float copied = smem.values.load(63 - thread);
    if (round == 1) store_global(p.out + thread, copied);
    sync_block();
  }
}

// The values of T, 4 or 8 bytes, in reverse order; zeros for every other one.
template <class T>
GLOBAL void copy_values_through_shared(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  constexpr int kValues = kProbeThreads * sizeof(float) / sizeof(T);
  const int thread = thread_index();
  if (thread < kValues)
    copy_async(reinterpret_cast<T*>(smem.values.data) + thread, reinterpret_cast<const T*>(p.in) + kValues - 1 - thread,
               thread % 2 == 0);
  commit_copies();
  wait_copies<0>();
  sync_block();
  store_global(p.out + 63 - thread, smem.values.load(63 - thread));
}

// Each lane writes a row of its own, ldmatrix hands out the rows of others, each lane writes its row again.
GLOBAL void matrices_of_own_rows(const ProbeParams p) {
  struct Smem {
    SharedArray<Vector16, kProbeThreads> rows;
  };
  SHARED(Smem, smem);
  const int thread = thread_index();
  const float value = load_global(p.in + thread);
  const uint32_t pair = pack<bf16>(value, value);
  smem.rows.store(thread, {{pair, pair, pair, pair}});
  sync_warp();
  uint32_t matrices[4];
  load_matrix_x4<false>(reinterpret_cast<const bf16*>(smem.rows.address(0)), 8 * thread, matrices[0], matrices[1],
                        matrices[2], matrices[3]);
  sync_warp();
  smem.rows.store(thread, {});
  store_global(p.out + thread, unpack_low<bf16>(matrices[0]) + 100 * unpack_high<bf16>(matrices[3]));
}

GLOBAL void shuffles(const ProbeParams p) {
  const float value = load_global(p.in + thread_index());
  store_global(p.out + thread_index(), shuffle(value, lane_index() / 8 * 8) + 100 * shuffle_xor(value, 3));
}

GLOBAL void half_warp_shuffles(const ProbeParams p) {
  const uint32_t lanes = lane_index() < 16 ? 0xffff : 0xffff0000;
  store_global(p.out + thread_index(), shuffle_xor(load_global(p.in + thread_index()), 5, lanes));
}

GLOBAL void exponentials(const ProbeParams p) {
  store_global(p.out + thread_index(), exp2_approximate(load_global(p.in + thread_index())));
}

template <class T>
GLOBAL void packing(const ProbeParams p) {
  const float value = load_global(p.in + thread_index());
  const uint32_t pair = pack<T>(value, -value);
  store_global(p.out + thread_index(),
               unpack_high<T>(pair) == -unpack_low<T>(pair) || value != value ? unpack_low<T>(pair) : 12345.0f);
}

// in[0] words between neighbours.
GLOBAL void strided_stores(const ProbeParams p) {
  struct Smem {
    SharedArray<float, 64 * 32> values;
  };
  SHARED(Smem, smem);
  smem.values.store(thread_index() * int(load_global(p.in)), 1);
}

GLOBAL void reads_unwritten_shared(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  store_global(p.out + thread_index(), smem.values.load(thread_index()));
}

GLOBAL void race_with_right_result(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  smem.values.store(0, 1);
  sync_block();
  store_global(p.out + thread_index(), smem.values.load(0));
}

GLOBAL void shuffle_instead_of_barrier(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  smem.values.store(thread_index(), load_global(p.in + thread_index()));
  shuffle(0, 0);
  store_global(p.out + thread_index(), smem.values.load(thread_index() ^ 1));
}

GLOBAL void warp_barrier_between_warps(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  smem.values.store(thread_index(), load_global(p.in + thread_index()));
  sync_warp();
  store_global(p.out + thread_index(), smem.values.load(thread_index() ^ 32));
}

GLOBAL void global_race_in_block(const ProbeParams p) { store_global(p.out + thread_index() / 2, 1.0f); }

GLOBAL void two_blocks_write_one_address(const ProbeParams p) { store_global(p.out + thread_index(), 1.0f); }

GLOBAL void reads_what_another_block_writes(const ProbeParams p) {
  if (block_index() == 0) return store_global(p.out + thread_index(), 1.0f);
  load_global(p.out + thread_index());
}

GLOBAL void writes_past_the_end(const ProbeParams p) { store_global(p.out + thread_index() + 1, 1.0f); }
GLOBAL void reads_past_the_end(const ProbeParams p) { load_global(p.in + thread_index() + 1); }
GLOBAL void writes_an_input(const ProbeParams p) { store_global(const_cast<float*>(p.in) + thread_index(), 1.0f); }
GLOBAL void narrow_access(const ProbeParams p) { load_global(reinterpret_cast<const uint8_t*>(p.in)); }
GLOBAL void misaligned_global(const ProbeParams p) { load_global16(p.in + thread_index() / 2 + 1); }

GLOBAL void index_past_shared_array(const ProbeParams) {
  SHARED(ProbeSmem, smem);
  smem.values.store(thread_index() + 1, 1);
}

GLOBAL void row_past_a_tile(const ProbeParams p) {
  SHARED(TileSmem, smem);
  copy_async16(smem.tile.chunk(8, 0), reinterpret_cast<const bf16*>(p.in), true);
}

GLOBAL void more_shared_than_launched(const ProbeParams) {
  struct Smem {
    SharedArray<float, 64 * 33> values;
  };
  SHARED(Smem, smem);
  smem.values.store(0, 1);
}

GLOBAL void misaligned_shared(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  if (thread_index() == 0) copy_async16(smem.values.data + 1, p.in, true);
}

GLOBAL void misaligned_copy_to_shared(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  copy_async(reinterpret_cast<int64_t*>(smem.values.data + 1), reinterpret_cast<const int64_t*>(p.in), true);
}

GLOBAL void misaligned_copy_from_global(const ProbeParams p) {
  SHARED(ProbeSmem, smem);
  copy_async(reinterpret_cast<int64_t*>(smem.values.data), reinterpret_cast<const int64_t*>(p.in + 1), true);
}

GLOBAL void copy_past_shared(const ProbeParams p) {
  struct Smem {
    SharedArray<float, 64 * 32> values;
  };
  SHARED(Smem, smem);
  copy_async16(smem.values.data + 64 * 32, p.in, true);
}

GLOBAL void divergent_barrier(const ProbeParams) {
  if (lane_index() < 16)
    sync_block();
  else
    sync_block();
}

GLOBAL void barrier_without_returned_threads(const ProbeParams) {
  if (thread_index() >= 40) return;
  sync_block();
}

GLOBAL void barriers_in_opposite_order(const ProbeParams) {
  sync_named(warp_index() == 0 ? 1 : 2, 64);
  sync_named(warp_index() == 0 ? 2 : 1, 64);
}

GLOBAL void arrival_left_over(const ProbeParams) {
  if (warp_index() == 0) arrive_named(1, 64);
}

// in[0] is the barrier; in[1] and in[2] are how many threads warps 0 and 1 say that it is for.
GLOBAL void named_barrier(const ProbeParams p) {
  sync_named(int(load_global(p.in)), int(load_global(p.in + 1 + warp_index())));
}

GLOBAL void divergent_collective(const ProbeParams) {
  if (lane_index() < 16)
    sync_warp();
  else
    shuffle(1, 0);
}

GLOBAL void stuck_lanes(const ProbeParams) {
  if (lane_index() != 7) shuffle(1, 0);
}

GLOBAL void shuffle_outside_its_mask(const ProbeParams) { shuffle(1, 0, 0xffff); }

GLOBAL void overlapping_masks(const ProbeParams) { shuffle(1, 8, lane_index() < 16 ? 0xffff : 0xffffff00); }

GLOBAL void shuffle_from_absent_lane(const ProbeParams) {
  if (lane_index() < 16) shuffle(1, 16, 0xffff);
}

}  // namespace probes
}  // namespace regrow
