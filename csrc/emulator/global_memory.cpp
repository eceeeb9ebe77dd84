#include "emulator/launch.h"

namespace regrow::emulator {

void GlobalMemory::add(std::string name, const void* begin, int64_t bytes, int cell_bytes, bool writable) {
  buffers_.push_back(
      {std::move(name), static_cast<const char*>(begin), bytes, writable, Shadow(writable ? bytes : 0, cell_bytes)});
}

Buffer& GlobalMemory::find(const void* address, int bytes, Access access) {
  const char* first = static_cast<const char*>(address);
  const char* verb = access == Access::kRead ? "reads " : "writes ";
  const auto what = [&](const Buffer& b) {
    return verb + std::to_string(bytes) + " bytes at byte " + std::to_string(first - b.begin) + " of " + b.name +
           ", which has " + std::to_string(b.bytes);
  };
  const Buffer* before = nullptr;  // the nearest one that begins before the address
  for (Buffer& b : buffers_) {
    if (first < b.begin) continue;
    if (first + bytes <= b.begin + b.bytes) {
      if (access == Access::kWrite && !b.writable) throw Failure(what(b) + " and is an input");
      return b;
    }
    if (!before || b.begin > before->begin) before = &b;
  }
  if (before) throw Failure("out of bounds: " + what(*before));
  throw Failure(std::string("out of bounds: ") + verb + std::to_string(bytes) + " bytes before any buffer");
}

}  // namespace regrow::emulator
