#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

REGROW_BEGIN_ISA

// Vectors are the compiler's own (GCC's vector extensions): the same source serves every instruction set.
#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
inline constexpr int kLanes = kVectorBytes / int(sizeof(T));

// The signed integer as wide as T: what comparisons of Vector<T> give.
template <class T>
using IntOf = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
template <class T>
using Mask = Vector<IntOf<T>>;

template <class T>
inline Vector<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(p);
}

template <class T>
inline void store(T* p, Vector<T> x) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(p) = x;
}

template <class T>
inline Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}

// The first `count` lanes; the others are `fill`.
template <class T>
inline Vector<T> load_first(const T* p, int count, T fill = T(0)) {
  Vector<T> x = broadcast(fill);
  std::memcpy(&x, p, std::min(count, kLanes<T>) * sizeof(T));
  return x;
}

template <class T>
inline void store_first(T* p, Vector<T> x, int count) {
  std::memcpy(p, &x, count * sizeof(T));
}

// Lane i holds i.
template <class T>
inline Vector<T> iota() {
  Vector<T> x;
  for (int i = 0; i < kLanes<T>; ++i) x[i] = T(i);
  return x;
}

// b where either is NaN, as the hardware has it: keep the operand that may be NaN in second place.
template <class T>
inline Vector<T> max(Vector<T> a, Vector<T> b) {
  return a > b ? a : b;
}

// Lane i becomes lane i ^ kDistance.
template <class T, int kDistance>
inline Vector<T> exchange_lanes(Vector<T> x) {
  return __builtin_shuffle(x, iota<IntOf<T>>() ^ IntOf<T>(kDistance));
}

// rows[i][j] becomes rows[j][i], in log2(lanes) rounds of exchanges.
template <class T, int kDistance = kLanes<T> / 2>
inline void transpose(Vector<T>* rows) {
  if constexpr (kDistance > 0) {
    using Int = IntOf<T>;
    const Vector<Int> lane = iota<Int>();
    const Mask<T> upper = (lane & Int(kDistance)) != 0;
    const Vector<Int> first = upper ? lane + Int(kLanes<T> - kDistance) : lane;
    const Vector<Int> second = upper ? lane + Int(kLanes<T>) : lane + Int(kDistance);
    REGROW_UNROLL
    for (int i = 0; i < kLanes<T>; ++i) {
      if (i & kDistance) continue;
      const Vector<T> a = rows[i], b = rows[i + kDistance];
      rows[i] = __builtin_shuffle(a, b, first);
      rows[i + kDistance] = __builtin_shuffle(a, b, second);
    }
    transpose<T, kDistance / 2>(rows);
  }
}

// A fixed tree over the lanes: the same order on every run.
template <class T, int kDistance = kLanes<T> / 2>
inline T reduce_add(Vector<T> x) {
  if constexpr (kDistance == 0)
    return x[0];
  else
    return reduce_add<T, kDistance / 2>(x + exchange_lanes<T, kDistance>(x));
}

// NaN lanes are passed over: a NaN score reaches the result through its weight.
template <class T, int kDistance = kLanes<T> / 2>
inline T reduce_max(Vector<T> x) {
  if constexpr (kDistance == 0)
    return x[0];
  else
    return reduce_max<T, kDistance / 2>(max<T>(x, exchange_lanes<T, kDistance>(x)));
}

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

REGROW_END_ISA
