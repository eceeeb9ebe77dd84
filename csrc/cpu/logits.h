#pragma once

#include "cpu/executor.h"
#include "cpu/isa.h"
#include "kernels/logits_params.h"

REGROW_BEGIN_ISA

void logits_row_stats(const LogitsParams& p, const Executor& executor);
void logits_pick(const LogitsPickParams& p, const Executor& executor);
void logits_row_grad(const LogitsGradParams& p, const Executor& executor);

REGROW_END_ISA
