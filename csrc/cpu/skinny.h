#pragma once

#include "cpu/executor.h"
#include "cpu/isa.h"
#include "kernels/skinny_params.h"

REGROW_BEGIN_ISA

int64_t skinny_workspace(const SkinnyParams& p);  // bytes
void skinny(const SkinnyParams& p, const Executor& executor);

REGROW_END_ISA
