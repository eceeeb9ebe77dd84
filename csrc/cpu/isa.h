#pragma once

// Files that include this are compiled once per instruction set (CMakeLists.txt: add_cpu_kernels), each time in a
// namespace of its own, so that no inline function of one set is linked into another.
#ifndef REGROW_ISA
#error "compile through add_cpu_kernels, which defines REGROW_ISA"
#endif

#define REGROW_BEGIN_ISA  \
  namespace regrow::cpu { \
  inline namespace REGROW_ISA {
#define REGROW_END_ISA \
  }                    \
  }

// Loops over the registers of a tile: unrolled, so that accumulators never touch memory.
#define REGROW_UNROLL _Pragma("GCC unroll 16")
