#include "cuda/attention_launch.h"
#include "cuda/launch.h"
#include "kernels/tree_attention_backward.cuh"

namespace regrow::cuda {

template <>
void launch_tree_attention_backward<64>(const AttentionBackwardParams& p, const BackwardTiling& tiling, Stream stream) {
  dispatch_tree_attention_backward<64>(p, tiling, Launcher("tree_attention_backward", stream));
}

}  // namespace regrow::cuda
