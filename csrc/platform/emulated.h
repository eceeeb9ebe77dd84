#pragma once

// What device code asks of the emulator where g++ compiles it; csrc/emulator answers. Every function speaks for the
// emulated thread that is running, except where a lane is named.
#include <cstdint>
#include <source_location>
#include <string>

namespace regrow::emulator {

using Site = std::source_location;

int thread_index();
int64_t block_index();
int block_index_y();

// Ends the launch with this text, and the block and thread before it.
[[noreturn]] void fail(const std::string& text);

// The block's shared memory; fails where the launch asked for less than `bytes`.
void* shared_memory(int64_t bytes);

enum class Access { kRead, kWrite };

// Bounds, alignment (to `bytes`, a power of two) and races. The first also counts the bank conflicts of the warp's
// access; the second speaks for some lanes of the warp, who access the place together.
void access_shared(const void* address, int bytes, Access access, Site site);
void check_shared_of_lanes(uint32_t lanes, const void* address, int bytes, Access access, Site site);
void access_global(const void* address, int bytes, Access access, Site site);

// Bank conflicts of lanes that access memory together: one for each further cycle.
void count_bank_conflicts(const void* const* addresses, int num_addresses, int bytes);

// Synchronisation points: numbered, and skipped where the launch says so.
void sync_block(Site site);
void sync_warp(uint32_t lanes, Site site);
void sync_named(int barrier, int num_threads, Site site);
void arrive_named(int barrier, int num_threads, Site site);

// Turns between blocks: platform/turns.h. The last two are synchronisation points.
int take_ticket(int* counter, Site site);
void wait_for_turn(const int* turn, int value, Site site);
void pass_turn(int* turn, int value, Site site);

// mbarriers: platform/mbarrier.h. All are synchronisation points.
void mbarrier_init(const void* barrier, int count, Site site);
void mbarrier_arrive(const void* barrier, Site site);
void mbarrier_arrive_after_copies(const void* barrier, Site site);
void mbarrier_wait(const void* barrier, int parity, Site site);

// `bytes` from global to shared memory, zeros where not `real`; groups are the calling thread's own.
void copy_async(void* shared, const void* global, int bytes, bool real, Site site);
void commit_copies(Site site);
void wait_copies(int num_pending, Site site);

// Every lane of `lanes` brings its operands; the last to arrive runs `body` over them (null where a lane is not in
// `lanes`), then all return. Orders no memory access.
void warp_collective(const char* name, uint32_t lanes, void* operands, void (*body)(void* const* operands), Site site);

// The same with a typed body: body(T* const (&operands)[32]).
template <class T, void (*kBody)(T* const*)>
void collective(const char* name, uint32_t lanes, T& operands, Site site) {
  warp_collective(name, lanes, &operands, [](void* const* all) { kBody(reinterpret_cast<T* const*>(all)); }, site);
}

}  // namespace regrow::emulator
