#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "tree/plan.h"
#include "tree/rectangle.h"

namespace regrow {

// The most that kernels keep of one row on the stack.
inline constexpr int kMaxHeadDim = 256;

// A [rows, heads, dim] tensor with a contiguous last dimension; strides in elements.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t row_stride = 0, head_stride = 0;
};

// What forward and backward share. "Accumulation type": fp32, fp64 for fp64.
struct AttentionParams {
  Rows q;  // [Tq, Hq, D]
  Rows k;  // [Tk, Hkv, D]
  Rows v;  // [Tk, Hkv, Dv]
  int query_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  double scale = 1;
  double softcap = 0;           // 0: none
  const void* sinks = nullptr;  // [Hq] accumulation type, or null
  Rectangle rectangle;
  PlanView plan;
};

struct AttentionForwardParams : AttentionParams {
  void* out;        // [Tq, Hq, Dv] contiguous, of out_dtype
  DType out_dtype;  // q's; the accumulation type for a partial result
  void* lse;        // [Hq, Tq] accumulation type, natural log
  void* workspace;  // attention_forward_workspace() bytes
};

struct AttentionBackwardParams : AttentionParams {
  Rows dout;         // [Tq, Hq, Dv]
  Rows out;          // [Tq, Hq, Dv]
  const void* lse;   // [Hq, Tq] contiguous
  const void* dlse;  // [Hq, Tq] contiguous, or null
  // Accumulation type, contiguous, added to; null where no gradient is wanted.
  void* dq;         // [Tq, Hq, D]
  void* dk;         // [Tk, Hkv, D]
  void* dv;         // [Tk, Hkv, Dv]
  void* dsinks;     // [Hq] accumulation type, written; null without sinks
  void* workspace;  // attention_backward_workspace() bytes
};

// outs [num_partials, Tq, Hq, Dv] and lses [num_partials, Hq, Tq], contiguous, accumulation type.
struct LseMergeParams {
  const void* outs;
  const void* lses;
  const void* sinks;  // [Hq] or null
  DType dtype;        // kFloat32 or kFloat64
  int64_t num_partials, num_queries;
  int heads, value_dim;
  void* out;  // [Tq, Hq, Dv]
  void* lse;  // [Hq, Tq]
};

struct LseMergeBackwardParams : LseMergeParams {
  const void* dout;  // [Tq, Hq, Dv] contiguous
  const void* dlse;  // [Hq, Tq] contiguous, or null
  void* douts;       // [num_partials, Tq, Hq, Dv]
  void* dlses;       // [num_partials, Hq, Tq]
  void* dsinks;      // [Hq] or null
  void* sink_terms;  // [Hq, Tq] that CUDA sums for dsinks; null without sinks, and on the CPU
};

}  // namespace regrow
