#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "emulator/banks.h"
#include "emulator/fiber.h"
#include "emulator/launch.h"

namespace regrow::emulator {

// "tile_matmul.cuh:41:5 sync_block": how reports and Options::skip call a synchronisation point.
std::string name_of(const char* what, Site site);

constexpr int kNumBarriersOfBlock = 16;

struct Copy {
  void* shared;
  const void* global;  // null: zeros
  int bytes;
  uint32_t number;  // of the thread's copies
};

enum class State { kReady, kWaiting, kReturned };

struct Thread {
  State state = State::kReady;
  const char* waiting_for = "";  // with the place and, of a named barrier, its number
  Site waiting_at;
  int waiting_barrier = 0;
  std::vector<Copy> issued;              // since the last commit
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
};

// Named barriers and barrier 0, which is sync_block's.
struct Barrier {
  int expected = 0;  // threads, 0 while nobody is here
  int arrived = 0;
  std::vector<uint32_t> clock;     // what those who arrived know
  std::vector<int> waiting;        // threads to wake
  std::map<int, Site> warp_sites;  // where each warp's first lane came from
};

// A warp instruction for which lanes are being collected.
struct Collective {
  const char* name;
  Site site;
  uint32_t lanes, arrived;
  void* operands[kWarpLanes];
};

// One block on its way: threads, barriers, shared memory and what is known of it. Blocks run one after the other.
class Block {
 public:
  Block(const LaunchShape& shape, int64_t index, int index_y, GlobalMemory& memory, const Options& options,
        Report& report, const std::function<void()>& kernel);
  ~Block();

  static Block& current();

  void run();

  int thread() const { return thread_; }
  int num_threads() const { return shape_.threads; }
  int64_t index() const { return index_; }
  int index_y() const { return index_y_; }

  void* shared_memory(int64_t bytes);
  void access_shared(int thread, const void* address, int bytes, Access access, Site site, bool by_copy = false);
  void access_global(const void* address, int bytes, Access access, Site site);
  void tally_banks(const void* address, int bytes, Site site);
  void add_conflicts(int64_t cycles) { report_.bank_conflicts += cycles; }

  // Counts the point; true where this launch skips it.
  bool skips(const char* what, Site site);
  void sync_warp(uint32_t lanes, Site site);
  void barrier(const char* what, int id, int num_threads, bool wait, Site site);
  void copy_async(void* shared, const void* global, int bytes, bool real, Site site);
  void commit_copies();
  void wait_copies(int num_pending);
  void collective(const char* name, uint32_t lanes, void* operands, void (*body)(void* const*), Site site);

 private:
  static void run_thread();  // the entry of each fiber
  void resume_next();        // switches to the next ready thread; fails when there is none
  void wait_at(const char* what, Site site, int barrier = 0);
  void wake(int thread) { threads_[thread].state = State::kReady; }
  void stop(std::string text);
  std::string describe_waiting() const;
  std::string conflict(const char* where, int64_t byte, int bytes, Access access, Site site, const Epoch& other,
                       bool other_wrote) const;

  LaunchShape shape_;
  int64_t index_;
  int index_y_;
  int64_t flat_index_;
  GlobalMemory& memory_;
  const Options& options_;
  Report& report_;
  const std::function<void()>& kernel_;

  std::vector<Thread> threads_;
  std::vector<int> order_;     // the threads in the order in which they get their turn
  std::vector<int> position_;  // of a thread in `order_`
  int thread_ = 0;             // the one that runs
  int num_returned_ = 0;
  std::optional<std::string> failure_;

  std::vector<Barrier> barriers_;
  std::vector<std::vector<Collective>> collectives_;  // of each warp
  Clocks clocks_;
  Shadow shared_shadow_;
  BankTally banks_;
};

}  // namespace regrow::emulator
