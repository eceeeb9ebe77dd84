#include "cuda/attention_launch.h"
#include "cuda/launch.h"
#include "kernels/tree_attention.cuh"

namespace regrow::cuda {

template <>
void launch_tree_attention<256>(const AttentionForwardParams& p, const ForwardTiling& tiling, Stream stream) {
  dispatch_tree_attention<256>(p, tiling, Launcher("tree_attention", stream));
}

}  // namespace regrow::cuda
