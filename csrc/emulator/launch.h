#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulator/shadow.h"
#include "platform/device.h"

namespace regrow::emulator {

// What a launch found wrong: the text names block, thread and source line.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The order in which blocks run, and in a block the threads that are ready.
enum class Order { kForward, kReverse, kShuffled };

// When a copy lands: as early as the hardware may, or as late. Each hides errors that the other shows.
enum class Landing { kIssue, kWait };

struct Options {
  Order order = Order::kForward;
  Landing landing = Landing::kWait;
  uint64_t seed = 0;  // of kShuffled
  std::string skip;   // the name of a synchronisation point that does nothing in this launch
};

// A global array that the kernel may read, and write if `writable`.
struct Buffer {
  std::string name;
  const char* begin;
  int64_t bytes;
  bool writable;
  Shadow shadow;
};

// All global memory of a launch.
class GlobalMemory {
 public:
  // Races are looked for in cells of `cell_bytes`, the kernel's smallest access.
  void add(std::string name, const void* begin, int64_t bytes, int cell_bytes, bool writable);

  // The buffer that holds all these bytes; a Failure that says how far off they are.
  Buffer& find(const void* address, int bytes, Access access);

 private:
  std::vector<Buffer> buffers_;
};

struct Report {
  std::map<std::string, int64_t> sync_points;                // name -> how many times a thread passed
  std::map<std::string, int64_t, std::less<>> instructions;  // warp instructions by name
  int64_t async_copies = 0;
  int64_t bank_conflicts = 0;  // cycles beyond the first of each shared access
};

// Runs `kernel` for every thread of every block, blocks one after the other. Throws Failure.
Report launch(const LaunchShape& shape, GlobalMemory& memory, const Options& options,
              const std::function<void()>& kernel);

}  // namespace regrow::emulator
