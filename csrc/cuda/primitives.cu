// The kernels that prove the primitives: compiled by tests/static, which read their instructions.
#include "kernels/copy_pipeline.cuh"
#include "kernels/tile_matmul.cuh"

namespace regrow {

template GLOBAL void tile_matmul<TileMatmulConfig<bf16, false>>(TileMatmulParams);
template GLOBAL void tile_matmul<TileMatmulConfig<bf16, true>>(TileMatmulParams);
template GLOBAL void tile_matmul<TileMatmulConfig<fp16, false>>(TileMatmulParams);
template GLOBAL void tile_matmul<TileMatmulConfig<fp16, true>>(TileMatmulParams);
template GLOBAL void copy_pipeline<CopyPipelineConfig>(CopyPipelineParams);

}  // namespace regrow
