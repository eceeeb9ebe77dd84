#pragma once

// Tensor-core products of one warp, m16n8k16, and ldmatrix, which loads their operands from shared tiles.
// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16"; with lane l and value i of a lane's list
//   A[l/4 + 8 (i/2 % 2), 8 (i/4) + 2 (l%4) + i%2]   B[8 (i/2) + 2 (l%4) + i%2, l/4]   C[l/4 + 8 (i/2), 2 (l%4) + i%2].
#include "platform/numbers.h"
#include "platform/sync.h"
#include "tile/shared_tile.h"

namespace regrow {

template <class T>
struct FragmentA {
  uint32_t pairs[4] = {};
};

template <class T>
struct FragmentB {
  uint32_t pairs[2] = {};
};

struct FragmentC {
  float values[4] = {};
};

// Row and column of value i of the calling lane's FragmentC.
DEVICE int row_of_value(int i) { return lane_index() / 4 + i / 2 * 8; }
DEVICE int column_of_value(int i) { return lane_index() % 4 * 2 + i % 2; }

#if !defined(__CUDACC__)
namespace emulator {

template <class T>
struct LoadMatrix {
  const T* row;        // of matrix lane / 8, row lane % 8
  uint32_t* pairs[4];  // what the lane receives of each matrix
  Site site;
};

// Lane l receives of each matrix m row l/4, columns 2 (l%4) and the next; transposed, of the transpose. A row is read
// for the lane that gives its address and for those that receive from it: ldmatrix orders nothing, so all of them must
// be ordered after the writes, and later writes after all of them.
template <class T, bool kTransposed>
void load_matrices(LoadMatrix<T>* const* lanes) {
  for (int m = 0; m < 4; ++m) {
    const void* rows[8];
    for (int r = 0; r < 8; ++r) {
      rows[r] = lanes[m * 8 + r]->row;
      const uint32_t receivers = kTransposed ? 0x11111111u << r / 2 : 0xfu << r * 4;
      check_shared_of_lanes(receivers | 1u << (m * 8 + r), rows[r], 16, Access::kRead, lanes[0]->site);
    }
    count_bank_conflicts(rows, 8, 16);
    const auto value = [&](int row, int column) -> uint32_t { return lanes[m * 8 + row]->row[column].bits; };
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int major = lane / 4, minor = lane % 4 * 2;
      *lanes[lane]->pairs[m] = kTransposed ? value(minor, major) | value(minor + 1, major) << 16
                                           : value(major, minor) | value(major, minor + 1) << 16;
    }
  }
}

template <class T>
struct Mma {
  FragmentC* c;
  const FragmentA<T>* a;
  const FragmentB<T>* b;
};

// Every sum takes its products in the order of k; the eight columns of a row go together.
template <class T>
void multiply(Mma<T>* const* lanes) {
  using Row = float __attribute__((vector_size(32)));
  float a[16][16];
  Row b[16], c[16];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const Mma<T>& own = *lanes[lane];
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      float* at = &a[group + i % 2 * 8][pair + i / 2 * 8];
      at[0] = unpack_low<T>(own.a->pairs[i]);
      at[1] = unpack_high<T>(own.a->pairs[i]);
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + i * 8][group] = unpack_low<T>(own.b->pairs[i]);
      b[pair + i * 8 + 1][group] = unpack_high<T>(own.b->pairs[i]);
    }
    for (int i = 0; i < 4; ++i) c[group + i / 2 * 8][pair + i % 2] = own.c->values[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k) c[row] += a[row][k] * b[k];
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int i = 0; i < 4; ++i) lanes[lane]->c->values[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

}  // namespace emulator
#endif

// Four 8x8 matrices; lane l gives the place, `offset` from `tile`, of row l % 8 of matrix l / 8 and receives a pair of
// each.
template <bool kTransposed, class T>
DEVICE void load_matrix_x4(const T* tile, int offset, uint32_t& p0, uint32_t& p1, uint32_t& p2,
                           uint32_t& p3 AND_CALL_SITE) {
#if defined(__CUDACC__)
  const uint32_t address = uint32_t(__cvta_generic_to_shared(tile)) + uint32_t(offset) * 2;
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p0), "=r"(p1), "=r"(p2), "=r"(p3)
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p0), "=r"(p1), "=r"(p2), "=r"(p3)
                 : "r"(address)
                 : "memory");
#else
  emulator::LoadMatrix<T> operands = {tile + offset, {&p0, &p1, &p2, &p3}, site};
  emulator::collective<emulator::LoadMatrix<T>, emulator::load_matrices<T, kTransposed> >("ldmatrix", kAllLanes,
                                                                                          operands, site);
#endif
}

// c += a b, fp32 sums.
template <class T>
DEVICE void mma(FragmentC& c, const FragmentA<T>& a, const FragmentB<T>& b AND_CALL_SITE) {
#if defined(__CUDACC__)
  float (&v)[4] = c.values;
  if constexpr (__is_same(T, bf16))
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
        : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[0]), "r"(b.pairs[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
        : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[0]), "r"(b.pairs[1]));
#else
  emulator::Mma<T> operands = {&c, &a, &b};
  emulator::collective<emulator::Mma<T>, emulator::multiply<T> >("mma", kAllLanes, operands, site);
#endif
}

// Loads of operands. `lane` is lane_index(), perhaps opaque.
//
// A = tile[row .. row + 15, column .. column + 15].
template <class T, int kRows, int kColumns>
DEVICE FragmentA<T> load_a(const SharedTile<T, kRows, kColumns>& tile, int row, int column,
                           int lane = lane_index() AND_CALL_SITE) {
  FragmentA<T> a;
  load_matrix_x4<false>(tile.data, tile.offset_of_lane(row, lane % 16, column, lane / 16 * 8), a.pairs[0], a.pairs[1],
                        a.pairs[2], a.pairs[3] AND_SITE);
  return a;
}

// A[m, k] = tile[k, m], the tile's columns being A's rows: the first operand of A^T B.
template <class T, int kRows, int kColumns>
DEVICE FragmentA<T> load_a_of_columns(const SharedTile<T, kRows, kColumns>& tile, int k, int m,
                                      int lane = lane_index() AND_CALL_SITE) {
  FragmentA<T> a;
  load_matrix_x4<true>(tile.data, tile.offset_of_lane(k, lane / 16 * 8 + lane % 8, m, lane / 8 % 2 * 8), a.pairs[0],
                       a.pairs[1], a.pairs[2], a.pairs[3] AND_SITE);
  return a;
}

// Two B operands side by side: columns [n, n + 8) and [n + 8, n + 16) of B.
template <class T>
struct FragmentBPair {
  FragmentB<T> first, second;
};

// B[k, n] = tile[n, k], the tile's rows being B's columns: the second operand of A B^T.
template <class T, int kRows, int kColumns>
DEVICE FragmentBPair<T> load_b_of_rows(const SharedTile<T, kRows, kColumns>& tile, int n, int k,
                                       int lane = lane_index() AND_CALL_SITE) {
  FragmentBPair<T> b;
  load_matrix_x4<false>(tile.data, tile.offset_of_lane(n, lane / 16 * 8 + lane % 8, k, lane / 8 % 2 * 8),
                        b.first.pairs[0], b.first.pairs[1], b.second.pairs[0], b.second.pairs[1] AND_SITE);
  return b;
}

// B[k, n] = tile[k, n]: the second operand of A B.
template <class T, int kRows, int kColumns>
DEVICE FragmentBPair<T> load_b(const SharedTile<T, kRows, kColumns>& tile, int k, int n,
                               int lane = lane_index() AND_CALL_SITE) {
  FragmentBPair<T> b;
  load_matrix_x4<true>(tile.data, tile.offset_of_lane(k, lane % 16, n, lane / 16 * 8), b.first.pairs[0],
                       b.first.pairs[1], b.second.pairs[0], b.second.pairs[1] AND_SITE);
  return b;
}

}  // namespace regrow
