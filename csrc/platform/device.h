#pragma once

// The words of device code. nvcc compiles it for the GPU; any other compiler compiles the same text against the
// emulator, whose side of each primitive asks csrc/emulator through platform/emulated.h.
#include <cstdint>

#if defined(__CUDACC__)

#define GLOBAL __global__
#define DEVICE __device__ __forceinline__
#define LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
// Where a primitive was called, for the emulator's reports: as the only parameter, or after others; handed on likewise.
#define CALL_SITE
#define AND_CALL_SITE
#define SITE
#define AND_SITE
// `Smem` at the start of the block's dynamic shared memory. No static shared memory beside it: 1024 bytes of
// alignment hold only then.
#define SHARED(Smem, name)                                               \
  extern __shared__ __align__(1024) unsigned char regrow_shared_bytes[]; \
  Smem& name = *reinterpret_cast<Smem*>(regrow_shared_bytes)

#else

#include "platform/emulated.h"

#define GLOBAL inline
#define DEVICE inline
#define LAUNCH_BOUNDS(...)
#define UNROLL
#define NO_UNROLL
#define CALL_SITE ::regrow::emulator::Site site = ::regrow::emulator::Site::current()
#define AND_CALL_SITE , CALL_SITE
#define SITE site
#define AND_SITE , site
#define SHARED(Smem, name) Smem& name = *static_cast<Smem*>(::regrow::emulator::shared_memory(sizeof(Smem)))

#endif

namespace regrow {

constexpr int kWarpLanes = 32;

#if defined(__CUDACC__)
DEVICE int thread_index() { return int(threadIdx.x); }
DEVICE int64_t block_index() { return blockIdx.x; }
DEVICE int block_index_y() { return int(blockIdx.y); }
#else
DEVICE int thread_index() { return emulator::thread_index(); }
DEVICE int64_t block_index() { return emulator::block_index(); }
DEVICE int block_index_y() { return emulator::block_index_y(); }
#endif

// The same value, of which the compiler knows nothing: what is computed from it in a loop stays there. That costs an
// instruction where carrying it out of the loop would cost a register.
DEVICE int opaque(int x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

DEVICE int lane_index() { return thread_index() % kWarpLanes; }
DEVICE int warp_index() { return thread_index() / kWarpLanes; }

// What a launch asks for.
struct LaunchShape {
  int64_t blocks = 1;
  int blocks_y = 1;
  int threads = 128;
  int shared_bytes = 0;  // sizeof the kernel's Smem
};

}  // namespace regrow
