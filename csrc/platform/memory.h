#pragma once

// Loads and stores of one value. Device code touches memory through these only: what the emulator does not see, it
// cannot check.
#include "platform/device.h"

namespace regrow {

// Naturally aligned, 1 to 16 bytes.
template <class T>
DEVICE T load_global(const T* address AND_CALL_SITE) {
#if !defined(__CUDACC__)
  emulator::access_global(address, sizeof(T), emulator::Access::kRead, site);
#endif
  return *address;
}

template <class T>
DEVICE void store_global(T* address, T value AND_CALL_SITE) {
#if !defined(__CUDACC__)
  emulator::access_global(address, sizeof(T), emulator::Access::kWrite, site);
#endif
  *address = value;
}

// An array in shared memory, a member of some Smem.
template <class T, int kSize>
struct SharedArray {
  DEVICE T load(int i AND_CALL_SITE) const {
#if !defined(__CUDACC__)
    emulator::access_shared(address(i), sizeof(T), emulator::Access::kRead, site);
#endif
    return data[i];
  }

  DEVICE void store(int i, T value AND_CALL_SITE) {
#if !defined(__CUDACC__)
    emulator::access_shared(address(i), sizeof(T), emulator::Access::kWrite, site);
#endif
    data[i] = value;
  }

  // Entry `i` of the array, and of nothing beside it.
  DEVICE const T* address(int i) const {
#if !defined(__CUDACC__)
    if (i < 0 || i >= kSize)
      emulator::fail("index " + std::to_string(i) + " is outside a shared array of " + std::to_string(kSize));
#endif
    return data + i;
  }
  DEVICE T* address(int i) { return const_cast<T*>(static_cast<const SharedArray*>(this)->address(i)); }

  T data[kSize];
};

}  // namespace regrow
