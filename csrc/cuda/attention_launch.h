#pragma once

#include "cuda/kernels.h"

namespace regrow::cuda {

// The kernels of one head dim. A file each, so that they compile side by side.
template <int kHeadDim>
void launch_tree_attention(const AttentionForwardParams& p, const ForwardTiling& tiling, Stream stream);

template <int kHeadDim>
void launch_tree_attention_backward(const AttentionBackwardParams& p, const BackwardTiling& tiling, Stream stream);

}  // namespace regrow::cuda
