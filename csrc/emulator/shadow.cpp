#include "emulator/shadow.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "emulator/sites.h"

namespace regrow::emulator {
namespace {

constexpr int kLineBytes = 16;

// A thread's later read stands for its earlier ones.
void record_read(std::vector<Epoch>& reads, const Epoch& self) {
  bool recorded = false, some_empty = false;
  for (Epoch& read : reads) {
    if (read.block != self.block || read.slot != self.slot) continue;
    if (read.clock == self.clock && same_place(read.site, self.site))
      recorded = true, read.lanes |= self.lanes;
    else
      read.lanes &= ~self.lanes;
    some_empty |= !read.lanes;
  }
  if (some_empty) std::erase_if(reads, [](const Epoch& read) { return !read.lanes; });
  if (!recorded) reads.push_back(self);
}

}  // namespace

Shadow::Shadow(int64_t bytes, int cell_bytes)
    : cell_bytes_(cell_bytes), cells_of_line_(kLineBytes / cell_bytes), lines_((bytes + kLineBytes - 1) / kLineBytes) {}

void Shadow::reset() {
  std::fill(lines_.begin(), lines_.end(), Line());
  num_taken_ = 0;
}

void Shadow::check_width(int bytes) const {
  if (bytes < cell_bytes_)
    fail("an access of " + std::to_string(bytes) + " bytes, but races are looked for in cells of " +
         std::to_string(cell_bytes_) + ": make them smaller");
}

bool Shadow::access(int64_t byte, int bytes, Access access, const Epoch& self, const Clocks& clocks) {
  check_width(bytes);
  const int64_t end = byte + bytes;
  for (int64_t at = byte; at < end;) {
    const int64_t line = at / kLineBytes, line_end = std::min(end, (line + 1) * kLineBytes);
    const int first = int(at % kLineBytes) / cell_bytes_, last = int((line_end - 1) % kLineBytes) / cell_bytes_;
    if (!access_line(lines_[line], first, last + 1 - first, access, self, clocks)) return false;
    at = line_end;
  }
  return true;
}

bool Shadow::access_line(Line& line, int first_cell, int num_cells, Access access, const Epoch& self,
                         const Clocks& clocks) {
  const bool whole = num_cells == cells_of_line_;
  if (!whole && !line.split)
    split(line);
  else if (line.cell < 0)
    line.cell = take_cells(1);
  if (!line.split) return access_cell(cells_[line.cell], access, self, clocks);
  for (int cell = line.cell + first_cell; cell < line.cell + first_cell + num_cells; ++cell)
    if (!access_cell(cells_[cell], access, self, clocks)) return false;
  line.split = !(whole && access == Access::kWrite);
  return true;
}

bool Shadow::access_cell(Cell& cell, Access access, const Epoch& self, const Clocks& clocks) {
  if (!ordered(cell.write, true, self, clocks)) return false;
  if (access == Access::kRead) {
    record_read(cell.reads, self);
    return true;
  }
  for (const Epoch& read : cell.reads)
    if (!ordered(read, false, self, clocks)) return false;
  cell.reads.clear();
  cell.write = self;
  return true;
}

bool Shadow::ordered(const Epoch& earlier, bool wrote, const Epoch& self, const Clocks& clocks) {
  if (earlier.block == -1) return true;
  const bool one_use = earlier.use == self.use;
  if (one_use && self.use == Use::kTicket) return true;  // atomics
  for (uint32_t others = earlier.lanes; others; others &= others - 1) {
    const int slot = earlier.slot + std::countr_zero(others);
    bool known = one_use;
    for (uint32_t lanes = self.lanes; lanes && known; lanes &= lanes - 1) {
      const int thread = clocks.thread_of(self.slot + std::countr_zero(lanes));
      known = earlier.block == self.block ? clocks.knows(thread, slot, earlier.clock)
                                          : clocks.knows_of(earlier.block, thread, slot, earlier.clock);
    }
    if (known) continue;
    conflict_ = {earlier, slot, wrote};
    return false;
  }
  return true;
}

void Shadow::split(Line& line) {
  const int before = line.cell;
  if (!std::exchange(line.room, true)) line.cell = take_cells(cells_of_line_);
  for (int cell = 0; cell < cells_of_line_ && before >= 0; ++cell) cells_[line.cell + cell] = cells_[before];
  line.split = true;
}

int Shadow::take_cells(int count) {
  const int first = num_taken_;
  num_taken_ += count;
  if (num_taken_ > int(cells_.size())) cells_.resize(2 * std::max(cells_.size(), lines_.size()) + count);
  for (int cell = first; cell < num_taken_; ++cell) {
    cells_[cell].write = Epoch();
    cells_[cell].reads.clear();  // whose memory is kept
  }
  return first;
}

}  // namespace regrow::emulator
