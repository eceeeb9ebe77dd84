#include "emulator/shadow.h"

#include <algorithm>
#include <utility>

namespace regrow::emulator {

Clocks::Clocks(int num_threads)
    : num_threads_(num_threads),
      clocks_(num_threads, std::vector<uint32_t>(2 * num_threads, 0)),
      issued_(num_threads, 0) {
  for (int thread = 0; thread < num_threads; ++thread) clocks_[thread][thread] = 1;
}

void Clocks::release(int thread, std::vector<uint32_t>& into) {
  if (into.empty()) into.assign(2 * num_threads_, 0);
  for (size_t slot = 0; slot < into.size(); ++slot) into[slot] = std::max(into[slot], clocks_[thread][slot]);
  ++clocks_[thread][thread];
}

void Clocks::acquire(int thread, const std::vector<uint32_t>& from) {
  for (size_t slot = 0; slot < from.size(); ++slot) clocks_[thread][slot] = std::max(clocks_[thread][slot], from[slot]);
}

void Clocks::copies_landed(int thread, uint32_t copy) {
  uint32_t& known = clocks_[thread][copy_slot(thread)];
  known = std::max(known, copy);
}

namespace {

bool ordered(const Epoch& earlier, const Epoch& self, const std::vector<uint32_t>& known) {
  return earlier.block == -1 || (earlier.block == self.block && earlier.clock <= known[earlier.slot]);
}

}  // namespace

const Epoch* Shadow::access_cell(Cell& cell, Access access, const Epoch& self, const std::vector<uint32_t>& known) {
  if (!ordered(cell.write, self, known)) {
    conflict_is_write_ = true;
    return &cell.write;
  }
  if (access == Access::kRead) {
    // A write ordered after this read is ordered after all that this read is ordered after. Of another block's reads
    // one stands for all.
    bool another_block = false;
    std::erase_if(cell.reads, [&](const Epoch& read) {
      return read.block == self.block ? ordered(read, self, known) : std::exchange(another_block, true);
    });
    cell.reads.push_back(self);
    return nullptr;
  }
  for (const Epoch& read : cell.reads)
    if (!ordered(read, self, known)) {
      conflict_is_write_ = false;
      return &read;
    }
  cell.reads.clear();
  cell.write = self;
  return nullptr;
}

const Epoch* Shadow::access(int64_t byte, int bytes, Access access, const Epoch& self,
                            const std::vector<uint32_t>& known) {
  if (bytes < cell_bytes_)
    fail("an access of " + std::to_string(bytes) + " bytes, but races are looked for in cells of " +
         std::to_string(cell_bytes_) + ": make them smaller");
  for (int64_t cell = byte / cell_bytes_; cell <= (byte + bytes - 1) / cell_bytes_; ++cell)
    if (const Epoch* conflict = access_cell(cells_[cell], access, self, known)) return conflict;
  return nullptr;
}

}  // namespace regrow::emulator
