#pragma once

// Copies of the operands in the order in which the products read them. Each reads any storage format and strides.

#include <algorithm>

#include "cpu/operand.h"
#include "kernels/attention_params.h"
#include "platform/check.h"

REGROW_BEGIN_ISA

// Calls f.template operator()<S>() for the storage type S.
template <class F>
inline void with_storage(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kBFloat16:
      return f.template operator()<bfloat16>();
    case DType::kFloat16:
      return f.template operator()<float16>();
    default:
      CHECK(false, "not a floating dtype: ", name(dtype));
  }
}

template <class P, class S>
inline void convert_row(typename P::Value* to, const S* from, int count) {
  using Value = typename P::Value;
  using Compute = ComputeOf<S>;
  if constexpr (std::is_same_v<Value, S>) {
    std::memcpy(to, from, count * sizeof(S));
  } else if constexpr (std::is_same_v<Compute, ComputeOf<Value>>) {
    for (int i = 0; i < count; i += kLanes<Compute>) {
      const int lanes = std::min(count - i, kLanes<Compute>);
      write_first<Value>(to + i, read_first<S>(from + i, lanes), lanes);
    }
  } else {  // fp64 beside fp32, which no caller mixes
    for (int i = 0; i < count; ++i) to[i] = Number<Value>::to(ComputeOf<Value>(Number<S>::from(from[i])));
  }
}

// Rows of tokens [first_row, first_row + num_tokens) for heads [first_head, first_head + num_heads), head by head.
struct RowRange {
  int64_t first_row;
  int num_tokens;
  int first_head, num_heads;
  int dim;
  const uint8_t* unseen_rows = nullptr;  // [rows of the tensor] non-zero: read as zero; or null

  int num_rows() const { return num_tokens * num_heads; }
};

// Calls f(row of the tile, source pointer or null for a row that nobody sees).
template <class S, class F>
inline void for_each_row(const Rows& source, const RowRange& range, const F& f) {
  for (int head = 0; head < range.num_heads; ++head) {
    for (int token = 0; token < range.num_tokens; ++token) {
      const int64_t row = range.first_row + token;
      const S* from =
          static_cast<const S*>(source.data) + row * source.row_stride + (range.first_head + head) * source.head_stride;
      f(head * range.num_tokens + token, range.unseen_rows && range.unseen_rows[row] ? nullptr : from);
    }
  }
}

// As operand A: [row][dim].
template <class P>
void pack_rows(typename P::Element* to, const Rows& source, const RowRange& range) {
  with_storage(source.dtype, [&]<class S>() {
    for_each_row<S>(source, range, [&](int row, const S* from) {
      auto* target = reinterpret_cast<typename P::Value*>(to + int64_t(row) * elements<P>(range.dim));
      if (from)
        convert_row<P>(target, from, range.dim);
      else
        std::memset(target, 0, range.dim * sizeof(*target));
    });
  });
}

// As operand B of a product over dim, a column for each row: [panel of rows][dim][kPanel]. Missing columns are zero.
template <class P>
void pack_as_columns(typename P::Element* to, const Rows& source, const RowRange& range, int num_columns) {
  const int depth = elements<P>(range.dim);
  std::memset(to, 0, sizeof(*to) * panels<P>(num_columns) * depth * kPanel<P>);
  with_storage(source.dtype, [&]<class S>() {
    for_each_row<S>(source, range, [&](int row, const S* from) {
      if (!from) return;
      typename P::Element column[kMaxHeadDim / P::kPack];
      convert_row<P>(reinterpret_cast<typename P::Value*>(column), from, range.dim);
      auto* target = to + (row / kPanel<P>)*int64_t(depth) * kPanel<P> + row % kPanel<P>;
      for (int k = 0; k < depth; ++k) target[int64_t(k) * kPanel<P>] = column[k];
    });
  });
}

// As operand B of a product over rows: [panel of dim][row / kPack][kPanel][kPack]. Missing rows and columns are zero.
template <class P>
void pack_as_rows(typename P::Element* to, const Rows& source, const RowRange& range, int num_rows) {
  using Value = typename P::Value;
  const int depth = elements<P>(num_rows);
  std::memset(to, 0, sizeof(*to) * panels<P>(range.dim) * depth * kPanel<P>);
  with_storage(source.dtype, [&]<class S>() {
    for_each_row<S>(source, range, [&](int row, const S* from) {
      if (!from) return;
      Value values[kMaxHeadDim];
      convert_row<P>(values, from, range.dim);
      for (int first = 0; first < range.dim; first += kPanel<P>) {
        const int count = std::min(range.dim - first, kPanel<P>);
        auto* target = reinterpret_cast<Value*>(to + (int64_t(first / kPanel<P>) * depth + row / P::kPack) * kPanel<P>);
        for (int i = 0; i < count; ++i) target[i * P::kPack + row % P::kPack] = values[first + i];
      }
    });
  });
}

REGROW_END_ISA
