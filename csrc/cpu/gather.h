#pragma once

#include "cpu/executor.h"
#include "cpu/isa.h"
#include "kernels/gather_params.h"

REGROW_BEGIN_ISA

// Both take indices as valid: whoever calls has checked them.
void gather(const GatherParams& p, const Executor& executor);
void scatter(const ScatterParams& p, const Executor& executor);

REGROW_END_ISA
