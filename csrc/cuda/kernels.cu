// Every configuration that the launcher may ask for, instantiated for the chips of the build.
#include "kernels/logits_rows.cuh"
#include "kernels/lse_merge.cuh"
#include "kernels/replay_gather.cuh"
#include "kernels/replay_scatter.cuh"

namespace regrow {

template GLOBAL void lse_merge<float, 1>(LseMergeParams);
template GLOBAL void lse_merge<float, 4>(LseMergeParams);
template GLOBAL void lse_merge<double, 1>(LseMergeParams);
template GLOBAL void lse_merge<double, 2>(LseMergeParams);

template GLOBAL void replay_gather<Vector16>(GatherParams, int);
template GLOBAL void replay_gather<uint32_t>(GatherParams, int);
template GLOBAL void replay_gather<uint8_t>(GatherParams, int);

template GLOBAL void replay_scatter<double>(ScatterParams);
template GLOBAL void replay_scatter<float>(ScatterParams);
template GLOBAL void replay_scatter<bf16>(ScatterParams);
template GLOBAL void replay_scatter<fp16>(ScatterParams);
template GLOBAL void replay_scatter<uint64_t>(ScatterParams);
template GLOBAL void replay_scatter<uint32_t>(ScatterParams);
template GLOBAL void replay_scatter<uint16_t>(ScatterParams);
template GLOBAL void replay_scatter<uint8_t>(ScatterParams);

template GLOBAL void logits_row_stats<double, false, 1>(LogitsParams);
template GLOBAL void logits_row_stats<double, false, 2>(LogitsParams);
template GLOBAL void logits_row_stats<double, true, 1>(LogitsParams);
template GLOBAL void logits_row_stats<double, true, 2>(LogitsParams);
template GLOBAL void logits_row_stats<float, false, 1>(LogitsParams);
template GLOBAL void logits_row_stats<float, false, 4>(LogitsParams);
template GLOBAL void logits_row_stats<float, true, 1>(LogitsParams);
template GLOBAL void logits_row_stats<float, true, 4>(LogitsParams);
template GLOBAL void logits_row_stats<bf16, false, 1>(LogitsParams);
template GLOBAL void logits_row_stats<bf16, false, 8>(LogitsParams);
template GLOBAL void logits_row_stats<bf16, true, 1>(LogitsParams);
template GLOBAL void logits_row_stats<bf16, true, 8>(LogitsParams);
template GLOBAL void logits_row_stats<fp16, false, 1>(LogitsParams);
template GLOBAL void logits_row_stats<fp16, false, 8>(LogitsParams);
template GLOBAL void logits_row_stats<fp16, true, 1>(LogitsParams);
template GLOBAL void logits_row_stats<fp16, true, 8>(LogitsParams);

template GLOBAL void logits_pick<double, false>(LogitsPickParams);
template GLOBAL void logits_pick<double, true>(LogitsPickParams);
template GLOBAL void logits_pick<float, false>(LogitsPickParams);
template GLOBAL void logits_pick<float, true>(LogitsPickParams);
template GLOBAL void logits_pick<bf16, false>(LogitsPickParams);
template GLOBAL void logits_pick<bf16, true>(LogitsPickParams);
template GLOBAL void logits_pick<fp16, false>(LogitsPickParams);
template GLOBAL void logits_pick<fp16, true>(LogitsPickParams);

}  // namespace regrow
