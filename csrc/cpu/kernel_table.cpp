#include "cpu/kernel_table.h"

#include "cpu/attention.h"
#include "cpu/ceiling.h"
#include "cpu/gather.h"
#include "cpu/head.h"
#include "cpu/isa.h"
#include "cpu/logits.h"
#include "cpu/lse_merge.h"
#include "cpu/skinny.h"

#define REGROW_STRING_OF(x) #x
#define REGROW_STRING(x) REGROW_STRING_OF(x)

REGROW_BEGIN_ISA

extern const KernelTable kTable;
const KernelTable kTable = {
    REGROW_STRING(REGROW_ISA),
    attention_forward_workspace,
    attention_forward,
    attention_backward_workspace,
    attention_backward,
    lse_merge,
    lse_merge_backward,
    gather,
    scatter,
    logits_row_stats,
    logits_pick,
    logits_row_grad,
    head_workspace,
    head_forward,
    head_backward,
    skinny_workspace,
    skinny,
    register_loop,
};

REGROW_END_ISA
