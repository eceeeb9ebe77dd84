#pragma once

#include <cstddef>
#include <cstdint>

namespace regrow::cpu {

// Hands out aligned pieces of one allocation. Run over null it only measures, so one function both sizes and carves.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * int64_t(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  int64_t bytes() const { return used_; }

  static constexpr int64_t kAlignment = 64;

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace regrow::cpu
