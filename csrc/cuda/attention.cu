#include "cuda/attention_launch.h"
#include "cuda/launch.h"
#include "kernels/tree_attention_merge.cuh"

namespace regrow::cuda {

void tree_attention(const AttentionForwardParams& p, const ForwardTiling& tiling, Stream stream) {
  if (p.rectangle.num_queries == 0) return;
  with_head_dim(std::max(p.head_dim, p.value_dim),
                [&]<int kHeadDim>() { launch_tree_attention<kHeadDim>(p, tiling, stream); });
  dispatch_tree_attention_merge(p, tiling, Launcher("tree_attention_merge", stream));
}

}  // namespace regrow::cuda
