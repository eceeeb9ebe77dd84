#pragma once

// The end of the forward: from the fragments of out to memory.
#include "kernels/attention_tiles.cuh"
#include "tile/softmax.h"

namespace regrow {

inline constexpr float kLn2 = 0.69314718f;

// Two neighbouring columns.
struct alignas(8) Pair {
  float first, second;
};

// The results of warps that share rows and split keys. Rows are padded, so that eight of them lie in different banks.
template <int kKeyWarps, int kRows, int kHeadDim>
struct WarpResults {
  static constexpr int kStride = kHeadDim / 2 + 4;
  SharedArray<float, kKeyWarps * kRows> reference, sum;
  SharedArray<Pair, kKeyWarps * kRows * kStride> out;
};
template <int kRows, int kHeadDim>
struct WarpResults<1, kRows, kHeadDim> {};

// Joins the warps' softmax over their keys, in the order of the warps. Each then holds the columns [first, first +
// kHeadDim / kKeyWarps) of its rows in `joined`. One block of 16 rows.
template <class Config>
DEVICE void join_key_warps(OnlineSoftmax<1>& softmax, FragmentC (&out)[1][Config::kOutBlocks],
                           FragmentC (&joined)[1][Config::kOutBlocks / Config::kKeyWarps],
                           typename Config::Smem& smem) {
  using Results = WarpResults<Config::kKeyWarps, Config::kRows, Config::kHeadDim>;
  Results& results = smem.results;
  const int key_warp = Config::key_warp();
  const auto row_of = [&](int half) { return Config::first_row() + row_of_value(2 * half); };
  // These lie where the keys were, which nobody has read since the last barrier.
  static_assert(sizeof(results.reference) + sizeof(results.sum) <= sizeof(smem.k));
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(softmax.sum[0][half]);
    if (lane_index() % 4 == 0) {
      results.reference.store(key_warp * Config::kRows + row_of(half), softmax.reference[0][half]);
      results.sum.store(key_warp * Config::kRows + row_of(half), sum);
    }
  }
  sync_block();  // and nobody reads the last values, where out will lie
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half);
    float top = -INFINITY;
    for (int w = 0; w < Config::kKeyWarps; ++w) top = fmaxf(top, results.reference.load(w * Config::kRows + row));
    const float subtract = top == -INFINITY ? 0 : top;
    float sum = 0;
    for (int w = 0; w < Config::kKeyWarps; ++w)
      sum += results.sum.load(w * Config::kRows + row) *
             exp2_approximate(results.reference.load(w * Config::kRows + row) - subtract);
    const float factor = exp2_approximate(softmax.reference[0][half] - subtract);
    softmax.reference[0][half] = top;
    softmax.sum[0][half] = lane_index() % 4 == 0 ? sum : 0;  // the whole quad's
    UNROLL
    for (int n = 0; n < Config::kOutBlocks; ++n)
      results.out.store((key_warp * Config::kRows + row) * Results::kStride + 4 * n + lane_index() % 4,
                        {out[0][n].values[2 * half] * factor, out[0][n].values[2 * half + 1] * factor});
  }
  sync_block();
  UNROLL
  for (int half = 0; half < 2; ++half) {
    UNROLL
    for (int n = 0; n < Config::kOutBlocks / Config::kKeyWarps; ++n) {
      const int column = 4 * (key_warp * (Config::kOutBlocks / Config::kKeyWarps) + n) + lane_index() % 4;
      for (int w = 0; w < Config::kKeyWarps; ++w) {
        const Pair part = results.out.load((w * Config::kRows + row_of(half)) * Results::kStride + column);
        joined[0][n].values[2 * half] += part.first;
        joined[0][n].values[2 * half + 1] += part.second;
      }
    }
  }
}

// exp(lse - total), 0 where neither has seen a key; a NaN stays.
DEVICE float share_of(float lse, float total) { return lse == -INFINITY ? 0 : std::exp(lse - total); }

// Lets a head's sink into the lse of a row, and returns the factor for its out.
DEVICE float admit_sink(const AttentionParams& p, int head, float& lse) {
  if (!p.sinks) return 1;
  const float sink = load_global(static_cast<const float*>(p.sinks) + head);
  const float top = !(lse <= sink) && sink == sink ? lse : sink;  // a NaN of either stays
  const float total = std::isinf(top) ? top : top + std::log(share_of(lse, top) + share_of(sink, top));
  const float factor = share_of(lse, total);
  lse = total;
  return factor;
}

// Where the pieces of split query tiles wait for their merge.
struct Slots {
  float* lse;  // [slots, units, rows] natural log
  float* out;  // [slots, units, rows, value_dim]

  DEVICE Slots(const AttentionForwardParams& p, const ForwardTiling& tiling)
      : lse(static_cast<float*>(p.workspace)), out(lse + tiling.max_slots * tiling.units * tiling.rows) {}
  DEVICE static int64_t row(const ForwardTiling& tiling, int64_t slot, int unit, int row) {
    return (slot * tiling.units + unit) * tiling.rows + row;
  }
};

// Writes the columns of a thread to fp32 rows, a quad 32 bytes together.
template <int kBlocks>
DEVICE void store_wide(float* to, const FragmentC (&out)[kBlocks], int half, float factor, int num_columns) {
  UNROLL
  for (int n = 0; n < kBlocks; ++n)
    if (8 * n < num_columns)
      store_global(reinterpret_cast<Pair*>(to + 8 * n) + lane_index() % 4,
                   Pair{out[n].values[2 * half] * factor, out[n].values[2 * half + 1] * factor});
}

// Normalises the rows of a tile, and writes them to out and lse, or to a slot. The warp's columns start at
// first_column.
template <class Config, int kBlocks>
DEVICE void store_rows(const AttentionForwardParams& p, const ForwardTiling& tiling, const ForwardItem& item, int unit,
                       const OnlineSoftmax<Config::kRowBlocks>& softmax,
                       const FragmentC (&out)[Config::kRowBlocks][kBlocks], typename Config::Smem& smem) {
  using T = typename Config::T;
  const QueryTile queries(p, tiling, item.query_tile, unit);
  const int first_row = Config::first_row(), first_column = Config::key_warp() * (8 * kBlocks);
  const Slots slots(p, tiling);
  const bool wide = item.slot >= 0 || p.out_dtype == DType::kFloat32;
  UNROLL
  for (int b = 0; b < Config::kRowBlocks; ++b) {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * b + row_of_value(2 * half);
      const float sum = quad_sum(softmax.sum[b][half]);
      // A NaN score has a weight, though it is no maximum.
      float lse = sum == 0 ? -INFINITY : (softmax.reference[b][half] + std::log2(sum)) * kLn2;
      if (softmax.reference[b][half] == INFINITY) lse = INFINITY;  // whose weights are NaN
      float factor = sum == 0 ? 0 : 1 / sum;
      const bool stores_lse = first_column == 0 && lane_index() % 4 == 0;
      if (!wide) {
        if (queries.has(row)) {
          factor *= admit_sink(p, queries.head(row), lse);
          if (stores_lse) store_global(queries.lse_of(p, row), lse);
        }
        UNROLL
        for (int n = 0; n < kBlocks; ++n)
          store_pair(smem.q, row, first_column + 8 * n + column_of_value(0),
                     pack<T>(out[b][n].values[2 * half] * factor, out[b][n].values[2 * half + 1] * factor));
      } else if (queries.has(row)) {
        const int64_t slot_row = Slots::row(tiling, item.slot, unit, row);
        if (item.slot < 0) factor *= admit_sink(p, queries.head(row), lse);
        if (stores_lse) store_global(item.slot < 0 ? queries.lse_of(p, row) : slots.lse + slot_row, lse);
        float* to = item.slot < 0 ? queries.out_of<float>(p, row) : slots.out + slot_row * p.value_dim;
        store_wide(to + first_column, out[b], half, factor, p.value_dim - first_column);
      }
    }
  }
  if (wide) return;
  sync_warp();  // each warp stores what it wrote
  NO_UNROLL
  for (int at = lane_index(); at < 16 * Config::kRowBlocks * kBlocks; at += kWarpLanes) {
    const int row = first_row + at / kBlocks, column = first_column + at % kBlocks * 8;
    if (queries.has(row) && column < p.value_dim)
      store_global16(queries.out_of<T>(p, row) + column, load_chunk(smem.q, row, column));
  }
}

template <class Config>
DEVICE void store_result(const AttentionForwardParams& p, const ForwardTiling& tiling, const ForwardItem& item,
                         int unit, OnlineSoftmax<Config::kRowBlocks>& softmax,
                         FragmentC (&out)[Config::kRowBlocks][Config::kOutBlocks], typename Config::Smem& smem) {
  if constexpr (Config::kKeyWarps == 1) {
    store_rows<Config>(p, tiling, item, unit, softmax, out, smem);
  } else {
    FragmentC joined[1][Config::kOutBlocks / Config::kKeyWarps];
    join_key_warps<Config>(softmax, out, joined, smem);
    store_rows<Config>(p, tiling, item, unit, softmax, joined, smem);
  }
}

}  // namespace regrow
