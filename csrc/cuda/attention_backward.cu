#include "cuda/attention_launch.h"
#include "cuda/launch.h"
#include "kernels/attention_backward_rows.cuh"

namespace regrow::cuda {

void tree_attention_backward(const AttentionBackwardParams& p, const Rows& dout_operand, const BackwardTiling& tiling,
                             Stream stream) {
  dispatch_attention_delta(p, tiling, Launcher("attention_delta", stream));
  dispatch_attention_dsinks(p, tiling, Launcher("attention_dsinks", stream));
  if (p.rectangle.num_queries == 0 || p.rectangle.num_keys == 0) return;
  AttentionBackwardParams main = p;
  main.dout = dout_operand;
  with_head_dim(std::max(p.head_dim, p.value_dim),
                [&]<int kHeadDim>() { launch_tree_attention_backward<kHeadDim>(main, tiling, stream); });
}

}  // namespace regrow::cuda
