#include "emulator/fiber.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

// The assembly is for x86-64; elsewhere, or where asked for, the C library switches.
#if !defined(__x86_64__) && !defined(REGROW_UCONTEXT)
#define REGROW_UCONTEXT
#endif
#if defined(REGROW_UCONTEXT)
#include <ucontext.h>
#endif

namespace regrow::emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10, kGuardBytes = 16 << 10;
constexpr size_t kColours = 32, kColourBytes = 17 * 64;

// Where a stack begins, counted from its lowest byte. Stacks lie a power of two apart: were all to begin at their ends,
// what fibers use most would compete for the same few lines of the caches.
size_t usable_bytes(const void* stack) {
  return kStackBytes - reinterpret_cast<uintptr_t>(stack) / kStackBytes % kColours * kColourBytes;
}

void* main_paused = nullptr;

}  // namespace

Fiber::Fiber() {
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack_ == MAP_FAILED) throw std::bad_alloc();
  mprotect(stack_, kGuardBytes, PROT_NONE);  // an overflow faults, rather than reach the next fiber
}

Fiber::Fiber(Fiber&& other) noexcept
    : stack_(std::exchange(other.stack_, nullptr)), paused_(std::exchange(other.paused_, nullptr)) {}

#if !defined(REGROW_UCONTEXT)

namespace {

// *save = stack pointer; stack pointer = to. What the System V ABI asks a callee to keep is kept on the stack itself.
// 9 ns, against 170 ns of swapcontext, which calls the kernel.
__attribute__((naked, noinline)) void switch_stack(void** /*save*/, void* /*to*/) {
  asm volatile(R"(
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
  )");
}

}  // namespace

Fiber::~Fiber() {
  if (stack_) munmap(stack_, kStackBytes);
}

void Fiber::start_at(void (*entry)()) {
  void** top = reinterpret_cast<void**>(static_cast<char*>(stack_) + usable_bytes(stack_));
  *--top = nullptr;  // the return address of `entry`; also leaves the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  paused_ = top;
}

void switch_fiber(Fiber* from, Fiber* to) {
  switch_stack(from ? &from->paused_ : &main_paused, to ? to->paused_ : main_paused);
}

#else

Fiber::~Fiber() {
  delete static_cast<ucontext_t*>(paused_);
  if (stack_) munmap(stack_, kStackBytes);
}

void Fiber::start_at(void (*entry)()) {
  if (!paused_) paused_ = new ucontext_t;
  ucontext_t* context = static_cast<ucontext_t*>(paused_);
  getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = usable_bytes(stack_);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

void switch_fiber(Fiber* from, Fiber* to) {
  if (!main_paused) main_paused = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from ? from->paused_ : main_paused),
              static_cast<ucontext_t*>(to ? to->paused_ : main_paused));
}

#endif

}  // namespace regrow::emulator
