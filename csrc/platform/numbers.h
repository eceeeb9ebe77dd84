#pragma once

// 16-bit floats as bits, the same type for nvcc and g++. Conversions round to nearest even.
#include "platform/device.h"

namespace regrow {

struct bf16 {
  uint16_t bits;
};

struct fp16 {
  uint16_t bits;
};

DEVICE float to_float(bf16 x) { return __builtin_bit_cast(float, uint32_t(x.bits) << 16); }

DEVICE float to_float(fp16 x) {
#if defined(__CUDACC__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#else
  // By hand: where a compiler may not assume F16C, its own conversion is a call, several times as slow.
  const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
  float value = __builtin_bit_cast(float, magnitude) * 0x1p112f;                             // subnormals too
  if (magnitude >= 0x1fu << 23) value = __builtin_bit_cast(float, magnitude | 0xffu << 23);  // infinite, or a NaN
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | uint32_t(x.bits & 0x8000) << 16);
#endif
}

DEVICE float to_float(float x) { return x; }
DEVICE double to_float(double x) { return x; }

template <class T, class Float>
DEVICE T from_float(Float x) {
  return T(x);
}

template <>
DEVICE bf16 from_float<bf16, float>(float x) {
#if defined(__CUDACC__)
  bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#else
  if (x != x) return {0x7fff};  // the NaN of cvt
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

template <>
DEVICE fp16 from_float<fp16, float>(float x) {
#if defined(__CUDACC__)
  fp16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#else
  if (x != x) return {0x7fff};
  return {__builtin_bit_cast(uint16_t, _Float16(x))};
#endif
}

// What a sum is kept in: integers wrap in their own width.
template <class S>
struct SumOf {
  using Type = S;
};
template <>
struct SumOf<bf16> {
  using Type = float;
};
template <>
struct SumOf<fp16> {
  using Type = float;
};

template <class S>
DEVICE typename SumOf<S>::Type to_sum(S x) {
  if constexpr (sizeof(typename SumOf<S>::Type) == sizeof(S))
    return x;
  else
    return to_float(x);
}

template <class S>
DEVICE S from_sum(typename SumOf<S>::Type x) {
  if constexpr (sizeof(typename SumOf<S>::Type) == sizeof(S))
    return x;
  else
    return from_float<S>(x);
}

// Two values in one register, the first in the low half: what mma takes.
template <class T>
DEVICE uint32_t pack(float low, float high) {
#if defined(__CUDACC__)
  uint32_t result;
  if constexpr (__is_same(T, bf16))
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
#else
  return from_float<T>(low).bits | uint32_t(from_float<T>(high).bits) << 16;
#endif
}

template <class T>
DEVICE float unpack_low(uint32_t pair) {
  return to_float(T{uint16_t(pair)});
}

template <class T>
DEVICE float unpack_high(uint32_t pair) {
  return to_float(T{uint16_t(pair >> 16)});
}

#if !defined(__CUDACC__)
// What .ftz does to operands and results; a NaN stays.
inline float flush_subnormal(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }
#endif

// 2^x to about 2 ulp; subnormals in and out are 0.
DEVICE float exp2_approximate(float x) {
#if defined(__CUDACC__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return flush_subnormal(__builtin_exp2f(flush_subnormal(x)));
#endif
}

// 1 / x to 1 ulp; subnormals in and out are 0.
DEVICE float reciprocal_approximate(float x) {
#if defined(__CUDACC__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return flush_subnormal(1 / flush_subnormal(x));
#endif
}

}  // namespace regrow
