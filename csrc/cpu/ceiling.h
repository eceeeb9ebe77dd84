#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "kernels/dtype.h"

REGROW_BEGIN_ISA

// Multiplies and adds in registers only, as fast as the instruction set can for operands of this dtype: what a
// benchmark's share of peak refers to. Returns the operations done.
int64_t register_loop(DType dtype, int64_t iterations);

REGROW_END_ISA
