#pragma once

#include "cuda/kernels.h"

namespace regrow::cuda {

// The forward's kernels of one head dim. A file each, so that they compile side by side.
template <int kHeadDim>
void launch_tree_attention(const AttentionForwardParams& p, const ForwardTiling& tiling, Stream stream);

}  // namespace regrow::cuda
