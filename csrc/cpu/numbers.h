#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/simd.h"

REGROW_BEGIN_ISA

// Storage formats that are computed in fp32.
struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

inline float to_float(bfloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

// Round to nearest even; NaN stays NaN.
inline bfloat16 to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return {uint16_t((bits >> 16) | 0x40)};
  return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline float to_float(float16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  uint32_t bits;
  float y;
  if (rest >= 0x7c00) {
    bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;  // inf, NaN
  } else if (rest >= 0x400) {
    bits = sign | (rest + (112 << 10)) << 13;
  } else {
    y = float(rest) * 0x1p-24f;  // subnormal
    std::memcpy(&bits, &y, 4);
    bits |= sign;
  }
  std::memcpy(&y, &bits, 4);
  return y;
}

inline float16 to_float16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return {uint16_t(sign | 0x7e00)};
  if (rest >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // rounds beyond 65504
  if (rest < 0x38800000) {                                   // subnormal: adding 0.5 rounds at bit 2^-24
    float y;
    std::memcpy(&y, &rest, 4);
    y += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &y, 4);
    return {uint16_t(sign | (rounded - 0x3f000000))};
  }
  return {uint16_t(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13)};
}

// What a storage format is computed in, and how one vector of it is read and written.
template <class S>
struct Number {
  using Compute = S;
  static Vector<S> read(const S* p) { return load(p); }
  static void write(S* p, Vector<S> x) { store(p, x); }
  static S from(S x) { return x; }
  static S to(S x) { return x; }
};

template <>
struct Number<bfloat16> {
  using Compute = float;
  static float from(bfloat16 x) { return to_float(x); }
  static bfloat16 to(float x) { return to_bfloat16(x); }
  static Vector<float> read(const bfloat16* p) {
    typedef uint16_t half __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
    return (Vector<float>)(__builtin_convertvector(*reinterpret_cast<const half*>(p), Vector<uint32_t>) << 16);
  }
  static void write(bfloat16* p, Vector<float> x) {
#if defined(__AVX512BF16__)
    const __m256bh y = _mm512_cvtneps_pbh((__m512)x);
    std::memcpy(p, &y, sizeof y);
#else
    for (int i = 0; i < kLanes<float>; ++i) p[i] = to_bfloat16(x[i]);
#endif
  }
};

template <>
struct Number<float16> {
  using Compute = float;
  static float from(float16 x) { return to_float(x); }
  static float16 to(float x) { return to_float16(x); }
  static Vector<float> read(const float16* p) {
#if defined(__AVX512F__)
    return (Vector<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
    return (Vector<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    Vector<float> x;
    for (int i = 0; i < kLanes<float>; ++i) x[i] = to_float(p[i]);
    return x;
#endif
  }
  static void write(float16* p, Vector<float> x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < kLanes<float>; ++i) p[i] = to_float16(x[i]);
#endif
  }
};

template <class S>
using ComputeOf = typename Number<S>::Compute;

// The first `count` lanes of a row, the others 0; and back.
template <class S>
inline Vector<ComputeOf<S>> read_first(const S* p, int count) {
  if (count >= kLanes<ComputeOf<S>>) return Number<S>::read(p);
  S lanes[kLanes<ComputeOf<S>>] = {};
  std::memcpy(lanes, p, count * sizeof(S));
  return Number<S>::read(lanes);
}

template <class S>
inline void write_first(S* p, Vector<ComputeOf<S>> x, int count) {
  if (count >= kLanes<ComputeOf<S>>) return Number<S>::write(p, x);
  S lanes[kLanes<ComputeOf<S>>];
  Number<S>::write(lanes, x);
  std::memcpy(p, lanes, count * sizeof(S));
}

REGROW_END_ISA
