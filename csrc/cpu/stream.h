#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

REGROW_BEGIN_ISA

// An output beyond this size leaves the caches before anybody reads it: stores that go around them save the read of
// each line before it is overwritten, a third of a copy's traffic.
inline constexpr int64_t kStreamBytes = 4 << 20;

// `to` must be aligned to kVectorBytes.
inline void stream_vector(char* to, Vector<float> x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(reinterpret_cast<float*>(to), (__m512)x);
#elif defined(__AVX2__)
  _mm256_stream_ps(reinterpret_cast<float*>(to), (__m256)x);
#elif defined(__x86_64__)
  _mm_stream_ps(reinterpret_cast<float*>(to), (__m128)x);
#else
  std::memcpy(to, &x, sizeof x);
#endif
}

// Streamed stores become visible to other threads: each worker calls this after its last one.
inline void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// memcpy around the caches. `next` is what the caller reads afterwards (any address will do).
inline void stream_copy(char* to, const char* from, int64_t bytes, const char* next) {
  constexpr int64_t kLine = 64;
  int64_t i = -reinterpret_cast<intptr_t>(to) & (kLine - 1);
  if (i > bytes) i = bytes;
  if (i) std::memcpy(to, from, i);
  for (; i + kLine <= bytes; i += kLine) {
    __builtin_prefetch(next + i);
    REGROW_UNROLL
    for (int64_t j = 0; j < kLine; j += kVectorBytes)
      stream_vector(to + i + j, load(reinterpret_cast<const float*>(from + i + j)));
  }
  if (i < bytes) std::memcpy(to + i, from + i, bytes - i);
}

REGROW_END_ISA
