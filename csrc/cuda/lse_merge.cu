#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "kernels/lse_merge.cuh"

namespace regrow::cuda {

void lse_merge(const LseMergeParams& p, Stream stream) { dispatch_lse_merge(p, Launcher("lse_merge", stream)); }

}  // namespace regrow::cuda
