#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "kernels/logits_row_grad.cuh"
#include "kernels/logits_rows.cuh"

namespace regrow::cuda {

void logits_row_stats(const LogitsParams& p, Stream stream) {
  dispatch_logits_row_stats(p, Launcher("logits_row_stats", stream));
}

void logits_pick(const LogitsPickParams& p, Stream stream) { dispatch_logits_pick(p, Launcher("logits_pick", stream)); }

void logits_row_grad(const LogitsGradParams& p, Stream stream) {
  dispatch_logits_row_grad(p, Launcher("logits_row_grad", stream));
}

}  // namespace regrow::cuda
