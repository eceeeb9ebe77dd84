// The functions of platform/emulated.h, for the block that runs.
#include "emulator/block.h"

namespace regrow::emulator {

int thread_index() { return Block::current().thread(); }
int64_t block_index() { return Block::current().index(); }
int block_index_y() { return Block::current().index_y(); }

void fail(const std::string& text) { throw Failure(text); }

void* shared_memory(int64_t bytes) { return Block::current().shared_memory(bytes); }

void access_shared(const void* address, int bytes, Access access, Site site) {
  Block& block = Block::current();
  block.access_shared(uint32_t(1) << block.thread() % kWarpLanes, address, bytes, access, site);
  block.tally_banks(address, bytes, site);
}

void check_shared_of_lanes(uint32_t lanes, const void* address, int bytes, Access access, Site site) {
  Block::current().access_shared(lanes, address, bytes, access, site);
}

void access_global(const void* address, int bytes, Access access, Site site) {
  Block::current().access_global(address, bytes, access, site);
}

void count_bank_conflicts(const void* const* addresses, int num_addresses, int bytes) {
  Block::current().add_conflicts(extra_cycles(addresses, num_addresses, bytes));
}

void sync_block(Site site) {
  Block& block = Block::current();
  if (!block.skips("sync_block", site)) block.barrier("sync_block", 0, block.num_threads(), true, site);
}

void sync_warp(uint32_t lanes, Site site) {
  Block& block = Block::current();
  if (!block.skips("sync_warp", site)) block.sync_warp(lanes, site);
}

namespace {

void named(const char* what, int barrier, int num_threads, bool wait, Site site) {
  if (barrier == 0) throw Failure(name_of(what, site) + ": barrier 0 is sync_block's, use 1 to 15");
  Block& block = Block::current();
  if (!block.skips(what, site)) block.barrier(what, barrier, num_threads, wait, site);
}

}  // namespace

void sync_named(int barrier, int num_threads, Site site) { named("sync_named", barrier, num_threads, true, site); }
void arrive_named(int barrier, int num_threads, Site site) { named("arrive_named", barrier, num_threads, false, site); }

int take_ticket(int* counter, Site site) { return Block::current().take_ticket(counter, site); }

void wait_for_turn(const int* turn, int value, Site site) {
  Block& block = Block::current();
  if (!block.skips("wait_for_turn", site)) block.wait_for_turn(turn, value, site);
}

void pass_turn(int* turn, int value, Site site) {
  Block& block = Block::current();
  if (!block.skips("pass_turn", site)) block.pass_turn(turn, value, site);
}

void mbarrier_init(const void* barrier, int count, Site site) {
  Block& block = Block::current();
  if (!block.skips("mbarrier_init", site)) block.init_mbarrier(barrier, count, site);
}

namespace {

void arrive(const char* what, const void* barrier, bool by_copies, Site site) {
  Block& block = Block::current();
  if (!block.skips(what, site)) block.arrive_at_mbarrier(what, barrier, by_copies, site);
}

}  // namespace

void mbarrier_arrive(const void* barrier, Site site) { arrive("mbarrier_arrive", barrier, false, site); }

void mbarrier_arrive_after_copies(const void* barrier, Site site) {
  arrive("mbarrier_arrive_after_copies", barrier, true, site);
}

void mbarrier_wait(const void* barrier, int parity, Site site) {
  Block& block = Block::current();
  if (!block.skips("mbarrier_wait", site)) block.wait_at_mbarrier(barrier, parity, site);
}

void copy_async(void* shared, const void* global, int bytes, bool real, Site site) {
  Block::current().copy_async(shared, global, bytes, real, site);
}

void commit_copies(Site site) {
  Block& block = Block::current();
  if (!block.skips("commit_copies", site)) block.commit_copies();
}

void wait_copies(int num_pending, Site site) {
  Block& block = Block::current();
  if (!block.skips("wait_copies", site)) block.wait_copies(num_pending);
}

void warp_collective(const char* name, uint32_t lanes, void* operands, void (*body)(void* const*), Site site) {
  Block::current().collective(name, lanes, operands, body, site);
}

}  // namespace regrow::emulator
