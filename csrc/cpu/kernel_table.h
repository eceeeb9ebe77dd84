#pragma once

#include <cstdint>
#include <string>

#include "cpu/executor.h"
#include "kernels/attention_params.h"
#include "kernels/gather_params.h"
#include "kernels/head_params.h"
#include "kernels/logits_params.h"
#include "kernels/skinny_params.h"

namespace regrow::cpu {

// The kernels of one instruction set.
struct KernelTable {
  const char* isa;
  int64_t (*attention_forward_workspace)(const AttentionForwardParams&, int num_workers);  // bytes
  void (*attention_forward)(const AttentionForwardParams&, const Executor&);
  int64_t (*attention_backward_workspace)(const AttentionBackwardParams&, int num_workers);  // bytes
  void (*attention_backward)(const AttentionBackwardParams&, const Executor&);
  void (*lse_merge)(const LseMergeParams&, const Executor&);
  void (*lse_merge_backward)(const LseMergeBackwardParams&, const Executor&);
  void (*gather)(const GatherParams&, const Executor&);
  void (*scatter)(const ScatterParams&, const Executor&);
  void (*logits_row_stats)(const LogitsParams&, const Executor&);
  void (*logits_pick)(const LogitsPickParams&, const Executor&);
  void (*logits_row_grad)(const LogitsGradParams&, const Executor&);
  int64_t (*head_workspace)(const HeadParams&, int num_workers);  // bytes
  void (*head_forward)(const HeadForwardParams&, const Executor&);
  void (*head_backward)(const HeadBackwardParams&, const Executor&);
  int64_t (*skinny_workspace)(const SkinnyParams&);  // bytes
  void (*skinny)(const SkinnyParams&, const Executor&);
  int64_t (*register_loop)(DType, int64_t iterations);  // returns operations
};

// The best table that this machine can run, unless select_isa chose another.
const KernelTable& kernels();

// Throws std::invalid_argument, with the names that this machine can run, for any other.
void select_isa(const std::string& isa);

}  // namespace regrow::cpu
