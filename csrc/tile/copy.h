#pragma once

// Asynchronous copies into shared memory, and plain loads and stores of 16 bytes at a time.
#include "platform/memory.h"
#include "tile/shared_tile.h"

namespace regrow {

struct alignas(16) Vector16 {
  uint32_t words[4];
};

DEVICE Vector16 load_global16(const void* address AND_CALL_SITE) {
  Vector16 v;
#if defined(__CUDACC__)
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(__cvta_generic_to_global(address))
               : "memory");
#else
  emulator::access_global(address, 16, emulator::Access::kRead, site);
  __builtin_memcpy(&v, address, 16);
#endif
  return v;
}

DEVICE void store_global16(void* address, const Vector16& v AND_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)), "r"(v.words[0]),
               "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
#else
  emulator::access_global(address, 16, emulator::Access::kWrite, site);
  __builtin_memcpy(address, &v, 16);
#endif
}

// Neighbouring values that move together: 16 bytes of them, or one.
template <class T, int kValues>
struct Values {
  static_assert(kValues == 1 || kValues * sizeof(T) == 16);
  DEVICE T& operator[](int i) { return data[i]; }
  DEVICE const T& operator[](int i) const { return data[i]; }
  T data[kValues];
};

template <class T, int kValues>
DEVICE Values<T, kValues> load_values(const T* from AND_CALL_SITE) {
  if constexpr (kValues > 1)
    return __builtin_bit_cast(Values<T, kValues>, load_global16(from AND_SITE));
  else
    return {{load_global(from AND_SITE)}};
}

template <class T, int kValues>
DEVICE void store_values(T* to, const Values<T, kValues>& values AND_CALL_SITE) {
  if constexpr (kValues > 1)
    store_global16(to, __builtin_bit_cast(Vector16, values) AND_SITE);
  else
    store_global(to, values[0] AND_SITE);
}

// Two neighbouring values, the first at an even offset of the tile, or at a row and an even column.
template <class T, int kRows, int kColumns>
DEVICE void store_pair(SharedTile<T, kRows, kColumns>& tile, int offset, uint32_t pair AND_CALL_SITE) {
  T* address = tile.data + offset;
#if !defined(__CUDACC__)
  emulator::access_shared(address, 4, emulator::Access::kWrite, site);
#endif
  *reinterpret_cast<uint32_t*>(address) = pair;
}

template <class T, int kRows, int kColumns>
DEVICE void store_pair(SharedTile<T, kRows, kColumns>& tile, int row, int column, uint32_t pair AND_CALL_SITE) {
  store_pair(tile, tile.offset(row, column / 8 * 8) + column % 8, pair AND_SITE);
}

// The 16 bytes from a column that is a multiple of 8.
template <class T, int kRows, int kColumns>
DEVICE Vector16 load_chunk(const SharedTile<T, kRows, kColumns>& tile, int row, int column AND_CALL_SITE) {
  const T* address = tile.chunk(row, column);
#if !defined(__CUDACC__)
  emulator::access_shared(address, 16, emulator::Access::kRead, site);
#endif
  return *reinterpret_cast<const Vector16*>(address);
}

// 16 bytes to `shared`, past the L1 cache, or 16 zeros where `real` is false (the source is then not read). Lands at
// any time before the wait that covers it; other threads see it after that wait and a barrier.
template <class T>
DEVICE void copy_async16(T* shared, const T* global, bool real AND_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),
               "l"(__cvta_generic_to_global(global)), "r"(real ? 16 : 0)
               : "memory");
#else
  emulator::copy_async(shared, global, 16, real, site);
#endif
}

// The same for one value of 4 or 8 bytes, through the L1 cache: the hardware has no other way for these.
template <class T>
DEVICE void copy_async(T* shared, const T* global, bool real AND_CALL_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "16 bytes have copy_async16, and fewer than 4 have no instruction");
#if defined(__CUDACC__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),
               "l"(__cvta_generic_to_global(global)), "n"(int(sizeof(T))), "r"(real ? int(sizeof(T)) : 0)
               : "memory");
#else
  emulator::copy_async(shared, global, sizeof(T), real, site);
#endif
}

// The calling thread's copies since its last commit become one group.
DEVICE void commit_copies(CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::commit_copies(site);
#endif
}

// Waits until at most kPending of the calling thread's groups, the newest, are under way.
template <int kPending>
DEVICE void wait_copies(CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  emulator::wait_copies(kPending, site);
#endif
}

// Where a row of a tile comes from; zeros where it is not real, and the address is then any of the array.
template <class T>
struct RowSource {
  const T* values;
  bool real;
};

// A tile by kThreads threads: the first `num_columns` values of row r from source(r), zeros beyond.
template <int kThreads, class T, int kRows, int kColumns, class Source>
DEVICE void copy_rows_async(SharedTile<T, kRows, kColumns>& tile, int num_columns, const Source& source AND_CALL_SITE) {
  constexpr int kChunks = kColumns / 8;
  static_assert(kRows * kChunks % kThreads == 0);
  const int thread = opaque(thread_index());
  NO_UNROLL  // unrolled, its addresses would cost more registers than the loop costs time
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int at = i * kThreads + thread;
    const int row = at / kChunks, column = at % kChunks * 8;
    const RowSource<T> from = source(row);
    const bool real = from.real && column < num_columns;
    copy_async16(tile.chunk(row, column), from.values + (real ? column : 0), real AND_SITE);
  }
}

// Rows [0, num_rows) of a [*, kColumns] array, zeros in the tile's other rows.
template <int kThreads, class T, int kRows, int kColumns>
DEVICE void copy_rows_async(SharedTile<T, kRows, kColumns>& tile, const T* global, int64_t row_stride,
                            int num_rows AND_CALL_SITE) {
  const auto source = [&](int row) -> RowSource<T> {
    return {global + (row < num_rows ? row * row_stride : 0), row < num_rows};
  };
  copy_rows_async<kThreads>(tile, kColumns, source AND_SITE);
}

}  // namespace regrow
