#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "kernels/replay_gather.cuh"
#include "kernels/replay_scatter.cuh"

namespace regrow::cuda {

void replay_gather(const GatherParams& p, Stream stream) {
  dispatch_replay_gather(p, Launcher("replay_gather", stream));
}

void replay_scatter(const ScatterParams& p, Stream stream) {
  dispatch_replay_scatter(p, Launcher("replay_scatter", stream));
}

}  // namespace regrow::cuda
