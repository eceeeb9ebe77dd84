#pragma once

#include "cpu/executor.h"
#include "cpu/isa.h"
#include "kernels/head_params.h"

REGROW_BEGIN_ISA

int64_t head_workspace(const HeadParams& p, int num_workers);  // bytes, for either direction
void head_forward(const HeadForwardParams& p, const Executor& executor);
void head_backward(const HeadBackwardParams& p, const Executor& executor);

REGROW_END_ISA
