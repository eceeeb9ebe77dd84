#pragma once

#include "cpu/executor.h"
#include "cpu/isa.h"
#include "kernels/attention_params.h"

REGROW_BEGIN_ISA

int64_t attention_forward_workspace(const AttentionForwardParams& p, int num_workers);
void attention_forward(const AttentionForwardParams& p, const Executor& executor);
int64_t attention_backward_workspace(const AttentionBackwardParams& p, int num_workers);
void attention_backward(const AttentionBackwardParams& p, const Executor& executor);

REGROW_END_ISA
