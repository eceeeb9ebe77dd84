// The kernel that proves the tile primitives: compiled by tests/static, which read its instructions.
#include "kernels/tile_matmul.cuh"

namespace regrow {

template GLOBAL void tile_matmul<TileMatmulConfig<bf16, false>>(TileMatmulParams);
template GLOBAL void tile_matmul<TileMatmulConfig<bf16, true>>(TileMatmulParams);
template GLOBAL void tile_matmul<TileMatmulConfig<fp16, false>>(TileMatmulParams);
template GLOBAL void tile_matmul<TileMatmulConfig<fp16, true>>(TileMatmulParams);

}  // namespace regrow
