#pragma once

#include <cmath>

#include "cpu/numbers.h"
#include "cpu/simd.h"

REGROW_BEGIN_ISA

// How a matrix product computes: an Element is what one multiplication takes from each side, kPack values along the
// summed dimension; sums are Acc. `Value` is one packed value.

template <class T>
struct Plain {
  using Value = T;
  using Element = T;
  using Acc = T;
  static constexpr int kPack = 1;

  static Vector<Acc> multiply_add(Vector<Acc> sum, Element a, const Element* b) { return sum + a * load(b); }

  // Two vectors of one row, side by side.
  static void store_row(Element* p, Vector<Acc> left, Vector<Acc> right) {
    store(p, left);
    store(p + kLanes<Acc>, right);
  }
  // One vector of each of kPack rows, interleaved.
  static void store_interleaved(Element* p, const Vector<Acc>* rows) { store(p, rows[0]); }
  // A panel of the first and the last of kPack rows, interleaved.
  static void interleave(Element* p, const Value* first, const Value*) {
    std::memcpy(p, first, 2 * kLanes<Acc> * sizeof(Element));
  }
};

using Fp64 = Plain<double>;
using Fp32 = Plain<float>;

#if defined(__AVX512BF16__)
// Pairs of bf16 with fp32 sums: one instruction multiplies twice as many values as fp32.
struct Bf16 {
  using Value = bfloat16;
  using Element = uint32_t;  // two consecutive values of the summed dimension, the first in the low half
  using Acc = float;
  static constexpr int kPack = 2;

  static Vector<Acc> multiply_add(Vector<Acc> sum, Element a, const Element* b) {
    return (Vector<Acc>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)),
                                         (__m512bh)_mm512_loadu_si512(b));
  }

  static void store_row(Element* p, Vector<Acc> left, Vector<Acc> right) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left));
  }
  static void store_interleaved(Element* p, const Vector<Acc>* rows) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)rows[1], (__m512)rows[0]);
    typedef uint16_t Halves __attribute__((vector_size(64)));
    Halves order;
    for (int i = 0; i < 32; ++i) order[i] = uint16_t(i / 2 + (i % 2) * 16);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16((__m512i)order, both));
  }
  static void interleave(Element* p, const Value* first, const Value* last) {
    for (int i = 0; i < 2 * kLanes<Acc>; ++i) p[i] = first[i].bits | uint32_t(last[i].bits) << 16;
  }
};
using Bf16Operand = Bf16;
#else
using Bf16Operand = Fp32;
#endif

// A panel is two vectors wide: the columns that one pass of the product's inner loop covers.
template <class P>
inline constexpr int kPanel = 2 * kLanes<typename P::Acc>;

template <class P>
constexpr int elements(int values) {
  return (values + P::kPack - 1) / P::kPack;
}

template <class P>
constexpr int panels(int columns) {
  return (columns + kPanel<P> - 1) / kPanel<P>;
}

REGROW_END_ISA
