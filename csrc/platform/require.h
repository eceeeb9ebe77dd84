#pragma once

// A rule that only device code can check: values that the host would have to wait for.
#include "platform/device.h"

#if defined(__CUDACC__)
#include <cassert>
#endif

namespace regrow {

// Ends the launch with `text` where the condition fails. On a GPU the text goes to stderr and the next call of the
// process that looks at the device gets "device-side assert triggered": the context is lost, so the text says it all.
DEVICE void require(bool condition, const char* text) {
  if (condition) return;
#if defined(__CUDACC__)
  __assert_fail(text, "regrow", 0, "require");
#else
  emulator::fail(text);
#endif
}

}  // namespace regrow
