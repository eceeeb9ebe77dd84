#pragma once

// Copies of the operands in the order in which the products read them. Each reads any storage format and strides.

#include <algorithm>

#include "cpu/operand.h"
#include "kernels/attention_params.h"
#include "platform/check.h"

REGROW_BEGIN_ISA

// The widest row that is packed at once.
inline constexpr int kMaxPackedDim = 512;

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

// Rows of tokens [first_row, first_row + num_tokens) for heads [first_head, first_head + num_heads).
struct RowRange {
  int64_t first_row;
  int num_tokens;
  int first_head, num_heads;
  int dim;
  const uint8_t* unseen_rows = nullptr;  // [rows of the tensor] non-zero: read as zero; or null
  bool by_token = false;                 // all heads of a token, then the next; else all tokens of a head

  int num_rows() const { return num_tokens * num_heads; }
  int64_t token(int row) const { return first_row + (by_token ? row / num_heads : row % num_tokens); }
  int head(int row) const { return first_head + (by_token ? row % num_heads : row / num_tokens); }
};

// Where a row of the tile comes from; null for a row that nobody sees.
template <class S>
inline const S* row_source(const Rows& source, const RowRange& range, int row) {
  const int64_t token = range.token(row);
  if (range.unseen_rows && range.unseen_rows[token]) return nullptr;
  return static_cast<const S*>(source.data) + token * source.row_stride + range.head(row) * source.head_stride;
}

// A row in the products' format, zeros for one that nobody sees or that is missing. Of an odd number of values the last
// element's second half is zero.
template <class P, class S>
inline void pack_row(typename P::Element* to, const Rows& source, const RowRange& range, int row) {
  const S* from = row < range.num_rows() ? row_source<S>(source, range, row) : nullptr;
  if (range.dim % P::kPack) to[range.dim / P::kPack] = 0;
  if (from)
    convert_row<P>(reinterpret_cast<typename P::Value*>(to), from, range.dim);
  else
    std::fill(to, to + elements<P>(range.dim), typename P::Element(0));
}

// As operand A: [row][dim].
template <class P>
void pack_rows(typename P::Element* to, const Rows& source, const RowRange& range) {
  with_storage(source.dtype, [&]<class S>() {
    for (int row = 0; row < range.num_rows(); ++row)
      pack_row<P, S>(to + int64_t(row) * elements<P>(range.dim), source, range, row);
  });
}

// As operand B of a product over dim, a column for each row: [panel of rows][dim][kPanel]. Missing columns are zero.
template <class P>
void pack_as_columns(typename P::Element* to, const Rows& source, const RowRange& range, int num_columns) {
  using Element = typename P::Element;
  constexpr int kBlock = kLanes<Element>;  // a square of so many rows and elements is transposed in registers
  const int depth = elements<P>(range.dim);
  with_storage(source.dtype, [&]<class S>() {
    alignas(64) Element rows[kBlock][kMaxPackedDim + kBlock];
    for (int column = 0; column < panels<P>(num_columns) * kPanel<P>; column += kBlock) {
      for (int i = 0; i < kBlock; ++i) pack_row<P, S>(rows[i], source, range, column + i);
      Element* target = to + (column / kPanel<P>)*int64_t(depth) * kPanel<P> + column % kPanel<P>;
      for (int k = 0; k < depth; k += kBlock) {
        Vector<Element> block[kBlock];
        REGROW_UNROLL
        for (int i = 0; i < kBlock; ++i) block[i] = load(rows[i] + k);
        transpose<Element>(block);
        for (int i = 0; i < std::min(kBlock, depth - k); ++i) store(target + int64_t(k + i) * kPanel<P>, block[i]);
      }
    }
  });
}

// As operand B of a product over rows: [panel of dim][row / kPack][kPanel][kPack]. Missing rows and columns are zero.
template <class P>
void pack_as_rows(typename P::Element* to, const Rows& source, const RowRange& range, int num_rows) {
  using Element = typename P::Element;
  const int depth = elements<P>(num_rows), width = panels<P>(range.dim) * kPanel<P>;
  with_storage(source.dtype, [&]<class S>() {
    alignas(64) typename P::Value rows[P::kPack][kMaxPackedDim + kPanel<P>] = {};
    for (int group = 0; group < depth; ++group) {
      for (int i = 0; i < P::kPack; ++i)
        pack_row<P, S>(reinterpret_cast<Element*>(rows[i]), source, range, group * P::kPack + i);
      for (int first = 0; first < width; first += kPanel<P>) {
        Element* target = to + (int64_t(first / kPanel<P>) * depth + group) * kPanel<P>;
        P::interleave(target, &rows[0][first], &rows[P::kPack - 1][first]);
      }
    }
  });
}

REGROW_END_ISA
