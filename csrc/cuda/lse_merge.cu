#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "kernels/lse_merge.cuh"
#include "kernels/lse_merge_backward.cuh"

namespace regrow::cuda {

void lse_merge(const LseMergeParams& p, Stream stream) { dispatch_lse_merge(p, Launcher("lse_merge", stream)); }

void lse_merge_backward(const LseMergeBackwardParams& p, Stream stream) {
  dispatch_lse_merge_backward(p, Launcher("lse_merge_backward", stream));
  dispatch_lse_merge_dsinks(p, Launcher("lse_merge_dsinks", stream));
}

}  // namespace regrow::cuda
