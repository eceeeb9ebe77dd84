#include "cuda/attention_launch.h"
#include "cuda/launch.h"
#include "kernels/tree_attention_merge.cuh"

namespace regrow::cuda {

void tree_attention(const AttentionForwardParams& p, const ForwardTiling& tiling, Stream stream) {
  if (p.rectangle.num_queries == 0) return;
  switch (padded_head_dim(std::max(p.head_dim, p.value_dim))) {
    case 64:
      launch_tree_attention<64>(p, tiling, stream);
      break;
    case 128:
      launch_tree_attention<128>(p, tiling, stream);
      break;
    default:
      launch_tree_attention<256>(p, tiling, stream);
  }
  dispatch_tree_attention_merge(p, tiling, Launcher("tree_attention_merge", stream));
}

}  // namespace regrow::cuda
