#include "emulator/block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>

namespace regrow::emulator {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxSharedBytes = 227 << 10;
constexpr int kSharedCellBytes = 2;  // the smallest value that kernels keep in shared memory

alignas(1024) unsigned char shared_bytes[kMaxSharedBytes];

// 0 to count - 1 as they get their turn; `salt` makes shuffles differ.
template <class Index>
std::vector<Index> in_order(const Options& options, Index count, uint64_t salt) {
  std::vector<Index> all(count);
  std::iota(all.begin(), all.end(), 0);
  if (options.order == Order::kReverse) std::reverse(all.begin(), all.end());
  if (options.order == Order::kShuffled) {
    std::mt19937_64 random(options.seed + salt);
    for (size_t left = all.size(); left > 1; --left) std::swap(all[left - 1], all[random() % left]);
  }
  return all;
}

// Stacks are kept: mapping a thousand of them takes longer than running a small block.
Fiber* fibers(int num_threads) {
  static std::vector<Fiber> all;
  while (int(all.size()) < num_threads) all.emplace_back();
  return all.data();
}

}  // namespace

Block* Block::current_ = nullptr;

Block::Block(Launch& launch, int64_t index, int index_y)
    : launch_(launch),
      shape_(launch.shape),
      index_(index),
      index_y_(index_y),
      flat_index_(index_y * launch.shape.blocks + index),
      threads_(shape_.threads),
      states_(shape_.threads, State::kReady),
      order_(in_order(launch.options, shape_.threads, uint64_t(flat_index_))),
      position_(shape_.threads),
      barriers_(kNumBarriersOfBlock),
      collectives_(num_warps()),
      clocks_(shape_.threads, flat_index_),
      banks_(num_warps()) {
  for (int i = 0; i < shape_.threads; ++i) position_[order_[i]] = i;
  std::memset(shared_bytes, 0xff, shape_.shared_bytes);  // a NaN in every float format
  launch.shared_shadow.reset();
  current_ = this;
}

Block::~Block() { current_ = nullptr; }

void Block::run() {
  fibers_ = fibers(shape_.threads);
  for (int thread = 0; thread < shape_.threads; ++thread) fibers_[thread].start_at(&Block::run_thread);
  thread_ = order_[0];
  switch_fiber(nullptr, &fibers_[thread_]);
  if (failure_) throw Failure(*failure_);
  for (int id = 0; id < kNumBarriersOfBlock; ++id)
    if (barriers_[id].arrived)
      throw Failure("block " + std::to_string(index_) + ": returned with " + std::to_string(barriers_[id].arrived) +
                    " arrivals at barrier " + std::to_string(id) + " for which nobody waited");
  try {
    finish_mbarriers();
  } catch (const Failure& failure) {
    throw Failure("block " + std::to_string(index_) + ": " + failure.what());
  }
  launch_.report.bank_conflicts += banks_.extra_cycles();
}

void Block::run_thread() {
  Block& block = Block::current();
  try {
    block.launch_.kernel();
  } catch (const std::exception& error) {
    block.stop(error.what());
  }
  // The exception is gone before the stack is left: its bookkeeping belongs to the OS thread.
  block.states_[block.thread_] = State::kReturned;
  ++block.num_returned_;
  try {
    if (!block.failure_ && block.num_returned_ < block.shape_.threads) block.resume_next();
  } catch (const std::exception& error) {
    block.stop(error.what());
  }
  switch_fiber(&block.fibers_[block.thread_], nullptr);
}

void Block::stop(std::string text) {
  failure_ = "block " + std::to_string(index_) + (shape_.blocks_y > 1 ? ", " + std::to_string(index_y_) : "") +
             ", thread " + std::to_string(thread_) + ": " + text;
}

void Block::resume_next() {
  const int from = thread_;
  int position = position_[from];
  for (int step = 0; step < shape_.threads; ++step) {
    if (++position == shape_.threads) position = 0;
    const int next = order_[position];
    if (states_[next] != State::kReady) continue;
    thread_ = next;
    if (next != from) switch_fiber(&fibers_[from], &fibers_[next]);
    return;
  }
  throw Failure("deadlock: no thread of the block can run. " + describe_waiting());
}

void Block::wait_at(const char* what, Site site, int barrier, int64_t mbarrier) {
  Thread& self = threads_[thread_];
  states_[thread_] = State::kWaiting;
  self.waiting_for = what;
  self.waiting_at = site;
  self.waiting_barrier = barrier;
  self.waiting_mbarrier = mbarrier;
  resume_next();
}

// "Threads 0-31 wait at a.cuh:3:5 sync_block; threads 32-63 have returned".
std::string Block::describe_waiting() const {
  std::string text;
  const auto place = [&](int thread) {
    const Thread& t = threads_[thread];
    if (states_[thread] == State::kReturned) return std::string("returned");
    return "wait at " + name_of(t.waiting_for, t.waiting_at) +
           (t.waiting_barrier ? " of barrier " + std::to_string(t.waiting_barrier) : "") +
           (t.waiting_mbarrier >= 0 ? " " + describe_mbarrier(t.waiting_mbarrier) : "");
  };
  for (int begin = 0, end; begin < shape_.threads; begin = end) {
    for (end = begin + 1; end < shape_.threads && place(end) == place(begin);) ++end;
    text += (begin ? "; threads " : "Threads ") + std::to_string(begin) + "-" + std::to_string(end - 1) + " " +
            place(begin);
  }
  return text;
}

bool Block::skips(const char* what, Site site) {
  Launch::Point& point = launch_.sync_points.at(
      what, site, [&] { return Launch::Point{.skipped = name_of(what, site) == launch_.options.skip}; });
  ++point.passed;
  return point.skipped;
}

void* Block::shared_memory(int64_t bytes) {
  if (bytes > shape_.shared_bytes)
    throw Failure("the kernel's Smem has " + std::to_string(bytes) + " bytes, the launch asked for " +
                  std::to_string(shape_.shared_bytes));
  return shared_bytes;
}

std::string Block::describe(const Conflict& conflict, const char* where, int64_t byte, int bytes, Access access,
                            const Epoch& self) const {
  const Epoch& other = conflict.other;
  std::string who = "thread " + std::to_string(clocks_.thread_of(conflict.slot));
  if (other.block != flat_index_) who = "block " + std::to_string(other.block % shape_.blocks) + ", " + who;
  const auto deed = [&] {
    if (conflict.slot >= clocks_.num_threads()) return "copied to it asynchronously";
    if (other.use == Use::kTicket) return "took a ticket from it";
    if (other.use == Use::kMBarrier)
      return conflict.wrote ? "initialised the mbarrier in it" : "used the mbarrier in it";
    if (other.use == Use::kTurn) return conflict.wrote ? "passed the turn at it" : "waited for its turn at it";
    return conflict.wrote ? "wrote it" : "read it";
  };
  const auto orders = [&] {
    if (other.use == self.use) return "and nothing orders the two";
    if (other.use == Use::kMBarrier || self.use == Use::kMBarrier)
      return "and the bytes of an mbarrier are for nothing else";
    return "and a place is for tickets, for turns or for ordinary accesses";
  };
  return "race: " + name_of(access == Access::kRead ? "reads " : "writes ", self.site) + std::to_string(bytes) +
         " bytes at byte " + std::to_string(byte) + " of " + where + "; " + who + " " + deed() + " at " +
         name_of("", other.site) + orders();
}

int64_t Block::byte_of_shared(const void* address) const {
  return static_cast<const unsigned char*>(address) - shared_bytes;
}

int64_t Block::check_shared_place(const void* address, int bytes, Access access, Site site) const {
  const int64_t byte = byte_of_shared(address);
  const auto what = [&] {
    return name_of(access == Access::kRead ? "reads " : "writes ", site) + std::to_string(bytes) + " bytes at byte " +
           std::to_string(byte) + " of shared memory";
  };
  if (byte < 0 || byte + bytes > shape_.shared_bytes)
    throw Failure("out of bounds: " + what() + ", which has " + std::to_string(shape_.shared_bytes));
  if (byte & (bytes - 1)) throw Failure("misaligned: " + what());
  return byte;
}

void Block::access_shared(uint32_t lanes, const void* address, int bytes, Access access, Site site, Use use) {
  const int64_t byte = check_shared_place(address, bytes, access, site);
  const int first_thread = thread_ / kWarpLanes * kWarpLanes;
  while (lanes) {
    // Those at one time of theirs act as one; mostly that is all.
    Epoch self = {flat_index_, first_thread, 0, clocks_.now(first_thread + std::countr_zero(lanes)), site, use};
    for (uint32_t left = lanes; left; left &= left - 1)
      if (clocks_.now(first_thread + std::countr_zero(left)) == self.clock) self.lanes |= left & -left;
    lanes &= ~self.lanes;
    touch(launch_.shared_shadow, "shared memory", byte, bytes, access, self);
  }
}

void Block::write_shared_by_copy(uint32_t number, const void* address, int bytes, Site site) {
  const int64_t byte = check_shared_place(address, bytes, Access::kWrite, site);
  const int first_slot = clocks_.copy_slot(thread_ / kWarpLanes * kWarpLanes);
  touch(launch_.shared_shadow, "shared memory", byte, bytes, Access::kWrite,
        {flat_index_, first_slot, own_bit(), number, site});
}

void Block::touch(Shadow& shadow, const char* where, int64_t byte, int bytes, Access access, const Epoch& self) {
  if (!shadow.access(byte, bytes, access, self, clocks_))
    throw Failure(describe(shadow.conflict(), where, byte, bytes, access, self));
}

void Block::access_global(const void* address, int bytes, Access access, Site site, Use use) {
  const char* verb = access == Access::kRead ? "reads " : "writes ";
  Buffer* buffer = nullptr;
  try {
    buffer = &launch_.memory.find(address, bytes, access);
  } catch (const Failure& failure) {
    throw Failure(name_of(failure.what(), site));
  }
  const int64_t byte = static_cast<const char*>(address) - buffer->begin;
  if (reinterpret_cast<uintptr_t>(address) & (bytes - 1))
    throw Failure("misaligned: " + name_of(verb, site) + std::to_string(bytes) + " bytes at byte " +
                  std::to_string(byte) + " of " + buffer->name);
  buffer->shadow.check_width(bytes);
  if (!buffer->writable) return;  // nobody's reads can conflict
  const Epoch self = {flat_index_, thread_ / kWarpLanes * kWarpLanes, own_bit(), clocks_.now(thread_), site, use};
  touch(buffer->shadow, buffer->name.c_str(), byte, bytes, access, self);
}

void Block::tally_banks(const void* address, int bytes, Site site) {
  banks_.visit(thread_ / kWarpLanes, thread_ % kWarpLanes, site, address, bytes);
}

Report launch(const LaunchShape& shape, GlobalMemory& memory, const Options& options,
              const std::function<void()>& kernel) {
  if (shape.threads < 1 || shape.threads > kMaxThreads)
    throw Failure("a block has 1 to 1024 threads, the launch asks for " + std::to_string(shape.threads));
  if (shape.shared_bytes > kMaxSharedBytes)
    throw Failure("a block has at most 232448 bytes of shared memory, the launch asks for " +
                  std::to_string(shape.shared_bytes));
  if (shape.blocks > 0x7fffffff || shape.blocks_y > 65535) throw Failure("too many blocks for one launch");
  Launch launch = {.shape = shape,
                   .memory = memory,
                   .options = options,
                   .kernel = kernel,
                   .shared_shadow = Shadow(shape.shared_bytes, kSharedCellBytes)};
  const int64_t num_blocks = shape.blocks * shape.blocks_y;
  for (const int64_t block : in_order(options, num_blocks, uint64_t(num_blocks)))
    Block(launch, block % shape.blocks, int(block / shape.blocks)).run();
  Report& report = launch.report;
  for (const auto& point : launch.sync_points.entries())
    report.sync_points[name_of(point.what, point.site)] += point.value.passed;
  if (!options.skip.empty() && !report.sync_points.contains(options.skip))
    throw Failure("no thread passed the synchronisation point " + options.skip + ", which the launch was to skip");
  return report;
}

}  // namespace regrow::emulator
