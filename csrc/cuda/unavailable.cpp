// Stands in for the .cu files of this folder in a build without nvcc.
#include <stdexcept>

#include "cuda/kernels.h"

namespace regrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("regrow was built without CUDA: install nvcc and rebuild (REGROW_CUDA=ON)");
}

}  // namespace

void tree_attention(const AttentionForwardParams&, const ForwardTiling&, Stream) { refuse(); }
void tree_attention_backward(const AttentionBackwardParams&, const Rows&, const BackwardTiling&, Stream) { refuse(); }
void lse_merge(const LseMergeParams&, Stream) { refuse(); }
void lse_merge_backward(const LseMergeBackwardParams&, Stream) { refuse(); }
void replay_gather(const GatherParams&, Stream) { refuse(); }
void replay_scatter(const ScatterParams&, Stream) { refuse(); }
void logits_row_stats(const LogitsParams&, Stream) { refuse(); }
void logits_pick(const LogitsPickParams&, Stream) { refuse(); }
void logits_row_grad(const LogitsGradParams&, Stream) { refuse(); }
DeviceLimits device_limits(int) { refuse(); }
void make_current(int) { refuse(); }

}  // namespace regrow::cuda
