#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace regrow::cpu {

// Lets workers add into shared memory one after the other in a fixed order, so that sums are bitwise the same for any
// number of threads. Works as long as work is claimed in an order in which nobody waits for what is unclaimed.
class Turns {
 public:
  Turns() = default;
  explicit Turns(int32_t* counters) : counters_(counters) {}  // zeroed

  void wait(int64_t place, int32_t turn) const {
    const std::atomic_ref<int32_t> counter(counters_[place]);
    for (int spins = 0; counter.load(std::memory_order_acquire) != turn; ++spins) {
      if (spins < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
  }
  void next(int64_t place) const { std::atomic_ref<int32_t>(counters_[place]).fetch_add(1, std::memory_order_release); }

 private:
  static constexpr int kSpins = 1000;  // some 10 us: a tile's time

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  int32_t* counters_ = nullptr;
};

}  // namespace regrow::cpu
