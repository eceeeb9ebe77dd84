#pragma once

#include <cstdint>
#include <vector>

#include "emulator/clocks.h"
#include "platform/emulated.h"

namespace regrow::emulator {

// What a place is for. Accesses of different uses are never ordered; tickets are atomic and always are.
enum class Use : uint8_t { kOrdinary, kTicket, kTurn, kMBarrier };

// What lanes of one warp did together, or one thread, or one thread's copy: who, when, where in the source.
struct Epoch {
  int64_t block = -1;  // -1: nobody yet
  int slot = 0;        // of the warp's lane 0
  uint32_t lanes = 0;  // bit i: slot + i took part
  uint32_t clock = 0;  // the same of all of them
  Site site;
  Use use = Use::kOrdinary;
};

struct Conflict {
  Epoch other;
  int slot = 0;  // of the one in `other` who is not ordered
  bool wrote = false;
};

// The last accesses of each cell of a piece of memory, by all blocks of a launch.
class Shadow {
 public:
  Shadow(int64_t bytes, int cell_bytes);

  // As if nothing had been accessed.
  void reset();

  // Records an access, and tells whether all earlier ones that conflict with it are ordered before it; conflict() is
  // one that is not. A writer is one lane.
  bool access(int64_t byte, int bytes, Access access, const Epoch& self, const Clocks& clocks);
  const Conflict& conflict() const { return conflict_; }

  void check_width(int bytes) const;

 private:
  struct Cell {
    Epoch write;
    std::vector<Epoch> reads;  // since then; every thread's last one
  };

  // 16 bytes, the largest access. As long as it is accessed as a whole, its first cell stands for all.
  struct Line {
    int cell = -1;      // its first; -1: never accessed
    bool room = false;  // it has all its cells
    bool split = false;
  };

  bool access_line(Line& line, int first_cell, int num_cells, Access access, const Epoch& self, const Clocks& clocks);
  bool access_cell(Cell& cell, Access access, const Epoch& self, const Clocks& clocks);
  bool ordered(const Epoch& earlier, bool wrote, const Epoch& self, const Clocks& clocks);
  void split(Line& line);
  int take_cells(int count);

  int cell_bytes_;
  int cells_of_line_;
  std::vector<Line> lines_;
  std::vector<Cell> cells_;  // of lines that were accessed; the first num_taken_ are in use
  int num_taken_ = 0;
  Conflict conflict_;
};

}  // namespace regrow::emulator
