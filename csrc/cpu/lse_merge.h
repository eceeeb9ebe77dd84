#pragma once

#include "cpu/executor.h"
#include "cpu/isa.h"
#include "kernels/attention_params.h"

REGROW_BEGIN_ISA

void lse_merge(const LseMergeParams& p, const Executor& executor);
void lse_merge_backward(const LseMergeBackwardParams& p, const Executor& executor);

REGROW_END_ISA
