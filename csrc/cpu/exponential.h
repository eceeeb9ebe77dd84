#pragma once

#include "cpu/simd.h"

REGROW_BEGIN_ISA

inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.6931471805599453094;

template <class T>
struct ExpTraits;
template <>
struct ExpTraits<float> {
  static constexpr int kMantissaBits = 23;
  static constexpr float kSmallest = -126.0f, kLargest = 128.0f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low mantissa bits
  static constexpr int kDegree = 7;             // Taylor terms of 2^r, |r| <= 1/2: 5e-9 relative
};
template <>
struct ExpTraits<double> {
  static constexpr int kMantissaBits = 52;
  static constexpr double kSmallest = -1022.0, kLargest = 1024.0;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr int kDegree = 13;                    // 4e-18 relative
};

// ln(2)^k / k!
constexpr double exp2_coefficient(int k) {
  double c = 1;
  for (int i = 1; i <= k; ++i) c *= kLn2 / i;
  return c;
}

// (2^r - 1) / r, by Horner's rule.
template <class T, int kDegree>
inline Vector<T> exp2_minus_1_over(Vector<T> r) {
  Vector<T> sum = broadcast(T(exp2_coefficient(kDegree)));
  REGROW_UNROLL
  for (int k = kDegree - 1; k >= 1; --k) sum = sum * r + T(exp2_coefficient(k));
  return sum;
}

// x = n + r with n whole and |r| <= 1/2; returns 2^n and leaves r. For x in [kSmallest, kLargest).
template <class T>
inline Vector<T> split_exponent(Vector<T> x, Vector<T>& r) {
  using E = ExpTraits<T>;
  const Vector<T> shifted = x + E::kRound;
  r = x - (shifted - E::kRound);
  const Mask<T> bits = ((Mask<T>)shifted << E::kMantissaBits) + (Mask<T>)broadcast(T(1));
  return (Vector<T>)bits;
}

// 2^x for x <= 0 or so: below the smallest normal number 0, NaN stays NaN. Not for x >= kLargest.
template <class T, int kDegree = ExpTraits<T>::kDegree>
inline Vector<T> exp2(Vector<T> x) {
  using E = ExpTraits<T>;
  const Vector<T> clamped = x < E::kSmallest ? broadcast(E::kSmallest) : x;
  Vector<T> r;
  const Vector<T> power = split_exponent<T>(clamped, r);
  const Vector<T> result = power * (exp2_minus_1_over<T, kDegree>(r) * r + T(1));
  return x < E::kSmallest ? Vector<T>{} : result;
}

// e^x - 1 without cancellation near 0; x is clamped to where tanh is 1.
template <class T>
inline Vector<T> expm1_clamped(Vector<T> x) {
  const T limit = sizeof(T) == 8 ? T(80) : T(40);
  x = x > limit ? broadcast(limit) : x;
  x = x < -limit ? broadcast(-limit) : x;
  // r = x * log2(e) - n with the product's rounding error carried along.
  const Vector<T> n = (x * T(kLog2E) + ExpTraits<T>::kRound) - ExpTraits<T>::kRound;
  constexpr T high = sizeof(T) == 8 ? T(0.693147180369123816490) : T(0.693145751953125);
  constexpr T low = T(kLn2 - double(high));
  const Vector<T> r = ((x - n * high) - n * low) * T(kLog2E);
  Vector<T> ignored;
  const Vector<T> power = split_exponent<T>(n, ignored);
  return power * (exp2_minus_1_over<T, ExpTraits<T>::kDegree>(r) * r) + (power - T(1));
}

// tanh to a few ulp, small arguments too.
template <class T>
inline Vector<T> tanh(Vector<T> x) {
  const Vector<T> e = expm1_clamped<T>(x + x);
  return e / (e + T(2));
}

REGROW_END_ISA
