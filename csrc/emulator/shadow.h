#pragma once

#include <cstdint>
#include <vector>

#include "platform/emulated.h"

namespace regrow::emulator {

// Happens-before, as vector clocks. Thread t of a block of n acts under slot t, its asynchronous copies under slot
// n + t; clocks[t][s] is how much of what slot s did thread t has been told of by barriers and waits.
class Clocks {
 public:
  explicit Clocks(int num_threads);

  int num_threads() const { return num_threads_; }
  const std::vector<uint32_t>& of(int thread) const { return clocks_[thread]; }
  uint32_t now(int thread) const { return clocks_[thread][thread]; }

  // `into` learns all that `thread` knows and did; what the thread does from now on is later.
  void release(int thread, std::vector<uint32_t>& into);
  void acquire(int thread, const std::vector<uint32_t>& from);

  uint32_t issue_copy(int thread) { return ++issued_[thread]; }
  uint32_t copies_issued(int thread) const { return issued_[thread]; }
  // The thread's copies up to number `copy` have landed, and it knows.
  void copies_landed(int thread, uint32_t copy);
  int copy_slot(int thread) const { return num_threads_ + thread; }

 private:
  int num_threads_;
  std::vector<std::vector<uint32_t>> clocks_;
  std::vector<uint32_t> issued_;
};

// One access: who, when, where in the source. Block -1: none yet.
struct Epoch {
  int64_t block = -1;
  int slot = 0;
  uint32_t clock = 0;
  Site site;
};

// The last accesses of each cell of a piece of memory. Accesses of different blocks are never ordered within a launch.
class Shadow {
 public:
  Shadow(int64_t bytes, int cell_bytes) : cell_bytes_(cell_bytes), cells_((bytes + cell_bytes - 1) / cell_bytes) {}

  // Records the access of `self`, a thread whose knowledge is `known`, and returns an earlier access that conflicts
  // with it and is not ordered before it, or null.
  const Epoch* access(int64_t byte, int bytes, Access access, const Epoch& self, const std::vector<uint32_t>& known);

  bool wrote(const Epoch* conflict) const { return conflict_is_write_ && conflict; }

 private:
  struct Cell {
    Epoch write;
    std::vector<Epoch> reads;  // those that no later recorded access is ordered after
  };

  const Epoch* access_cell(Cell& cell, Access access, const Epoch& self, const std::vector<uint32_t>& known);

  int cell_bytes_;
  std::vector<Cell> cells_;
  bool conflict_is_write_ = false;
};

}  // namespace regrow::emulator
