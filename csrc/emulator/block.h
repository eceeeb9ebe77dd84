#pragma once

#include <map>
#include <optional>
#include <vector>

#include "emulator/banks.h"
#include "emulator/fiber.h"
#include "emulator/launch.h"
#include "emulator/mbarriers.h"
#include "emulator/sites.h"

namespace regrow::emulator {

constexpr int kNumBarriersOfBlock = 16;

struct Copy {
  void* shared;
  const void* global;  // null: zeros
  int bytes;
  uint32_t number;  // of the thread's copies
};

enum class State : uint8_t { kReady, kWaiting, kReturned };

struct Thread {
  const char* waiting_for = "";  // with the place and, of a named barrier, its number
  Site waiting_at;
  int waiting_barrier = 0;
  int64_t waiting_mbarrier = -1;      // its byte
  std::vector<Copy> copies;           // that have not landed, oldest first
  uint32_t last_copy = 0;             // the number of the last one issued
  std::vector<uint32_t> group_lasts;  // of each committed group, oldest first: `last_copy` when it was committed
};

// Named barriers and barrier 0, which is sync_block's.
struct Barrier {
  int expected = 0;  // threads, 0 while nobody is here
  int arrived = 0;
  Clocks::Meeting meeting;
  std::vector<int> waiting;                     // threads to wake
  std::vector<std::optional<Site>> warp_sites;  // where each warp's first lane came from
};

// A warp instruction for which lanes are being collected.
struct Collective {
  const char* name = "";
  Site site;
  uint32_t lanes = 0, arrived = 0;
  void* operands[kWarpLanes] = {};
};

// What the blocks of a launch share.
struct Launch {
  struct Point {
    int64_t passed = 0;
    bool skipped;
  };

  LaunchShape shape;
  GlobalMemory& memory;
  const Options& options;
  const std::function<void()>& kernel;
  Shadow shared_shadow;  // of the block that runs: kept, for its memory
  BySite<Point> sync_points;
  std::map<const int*, Past> turns;  // what the last pass of each turn handed on
  Report report;                     // but for the synchronisation points
};

// One block on its way: threads, barriers, shared memory and what is known of it. Blocks run one after the other.
class Block {
 public:
  Block(Launch& launch, int64_t index, int index_y);
  ~Block();

  static Block& current() {
    if (!current_) throw Failure("device code runs only in a launch");
    return *current_;
  }

  void run();

  int thread() const { return thread_; }
  int num_threads() const { return shape_.threads; }
  int64_t index() const { return index_; }
  int index_y() const { return index_y_; }

  void* shared_memory(int64_t bytes);
  // By some lanes of the running thread's warp, itself or others, and by a copy of the running thread.
  void access_shared(uint32_t lanes, const void* address, int bytes, Access access, Site site,
                     Use use = Use::kOrdinary);
  void write_shared_by_copy(uint32_t number, const void* address, int bytes, Site site);
  void access_global(const void* address, int bytes, Access access, Site site, Use use = Use::kOrdinary);
  void tally_banks(const void* address, int bytes, Site site);
  void add_conflicts(int64_t cycles) { launch_.report.bank_conflicts += cycles; }

  // Counts the point; true where this launch skips it.
  bool skips(const char* what, Site site);
  void sync_warp(uint32_t lanes, Site site);
  void barrier(const char* what, int id, int num_threads, bool wait, Site site);
  int take_ticket(int* counter, Site site);
  void wait_for_turn(const int* turn, int value, Site site);
  void pass_turn(int* turn, int value, Site site);
  void copy_async(void* shared, const void* global, int bytes, bool real, Site site);
  void commit_copies();
  void wait_copies(int num_pending);
  void collective(const char* name, uint32_t lanes, void* operands, void (*body)(void* const*), Site site);
  void init_mbarrier(const void* address, int count, Site site);
  void arrive_at_mbarrier(const char* what, const void* address, bool by_copies, Site site);
  void wait_at_mbarrier(const void* address, int parity, Site site);

 private:
  static void run_thread();  // the entry of each fiber
  void resume_next();        // switches to the next ready thread; fails when there is none
  void wait_at(const char* what, Site site, int barrier = 0, int64_t mbarrier = -1);
  void wake(int thread) { states_[thread] = State::kReady; }
  void stop(std::string text);
  Collective& join_collective(const char* name, uint32_t lanes, Site site);  // the one that the lane has come to
  std::string describe_waiting() const;
  int64_t touch_mbarrier(const void* address, Access access, Site site);  // -> its byte
  MBarrierState& find_mbarrier(const char* what, const void* address, Site site);
  // Does the running thread know that all arrived in this phase? Else one of them that it does not know of.
  bool knows_complete(MBarrierState& b, const MBarrierPhase& phase, int64_t number, const MBarrierEvent** unknown);
  void complete_phase(MBarrierState& b);  // which is full
  void pass_mbarrier(MBarrierState& b, int thread, Site site);
  std::string describe_mbarrier(int64_t byte) const;
  void finish_mbarriers();                       // when all threads have returned
  void land_copies(int thread, uint32_t up_to);  // those of the thread's copies with numbers up to this one
  int64_t byte_of_shared(const void* address) const;
  int64_t check_shared_place(const void* address, int bytes, Access access, Site site) const;  // -> its byte
  std::string describe(const Conflict& conflict, const char* where, int64_t byte, int bytes, Access access,
                       const Epoch& self) const;
  // Records an access; a Failure where it is a race.
  void touch(Shadow& shadow, const char* where, int64_t byte, int bytes, Access access, const Epoch& self);
  int num_warps() const { return (shape_.threads + kWarpLanes - 1) / kWarpLanes; }
  uint32_t own_bit() const { return uint32_t(1) << thread_ % kWarpLanes; }

  static Block* current_;

  Launch& launch_;
  const LaunchShape& shape_;
  int64_t index_;
  int index_y_;
  int64_t flat_index_;

  Fiber* fibers_ = nullptr;  // of each thread
  std::vector<Thread> threads_;
  std::vector<State> states_;  // apart from threads_: searched at each switch
  std::vector<int> order_;     // the threads in the order in which they get their turn
  std::vector<int> position_;  // of a thread in `order_`
  int thread_ = 0;             // the one that runs
  int num_returned_ = 0;
  std::optional<std::string> failure_;

  std::vector<Barrier> barriers_;
  std::map<int64_t, MBarrierState> mbarriers_;        // by byte of shared memory
  std::vector<std::vector<Collective>> collectives_;  // of each warp
  Clocks clocks_;
  BankTally banks_;
};

}  // namespace regrow::emulator
