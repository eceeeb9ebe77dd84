#pragma once

namespace regrow::emulator {

// A stack of its own and the place where its code paused. One OS thread runs all fibers, one at a time.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(Fiber&& other) noexcept;
  Fiber(const Fiber&) = delete;

  // The next switch to this fiber calls `entry`, which must not return. What the stack held is dropped.
  void start_at(void (*entry)());

 private:
  friend void switch_fiber(Fiber* from, Fiber* to);
  void* stack_ = nullptr;
  void* paused_ = nullptr;  // the stack pointer, or a ucontext_t
};

// Pauses `from` and resumes `to`; null is the OS thread's own stack.
void switch_fiber(Fiber* from, Fiber* to);

}  // namespace regrow::emulator
