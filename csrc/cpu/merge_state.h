#pragma once

// The arithmetic of joining softmax states by their lse, sinks included. Infinite and NaN scores keep their meaning.

#include <algorithm>
#include <cmath>

#include "cpu/simd.h"

REGROW_BEGIN_ISA

// The larger of two lse, for a running maximum; a NaN stays.
template <class T>
inline T larger_lse(T top, T lse) {
  return !(lse <= top) && top == top ? lse : top;
}

// exp(lse - top), 0 for a state that has seen no key, even where top has not either; a NaN stays.
template <class T>
inline T state_weight(T lse, T top) {
  return lse == -kInfinity<T> ? T(0) : std::exp(lse - top);
}

// log(exp(top) * sum), where sum counts what is left of each term. Infinite scores have an infinite lse.
template <class T>
inline T log_sum(T top, T sum) {
  if (sum == 0) return -kInfinity<T>;
  return top == kInfinity<T> ? top : top + std::log(sum);
}

REGROW_END_ISA
