#include "cpu/gather.h"

#include <algorithm>
#include <cstring>

#include "cpu/numbers.h"
#include "cpu/stream.h"

REGROW_BEGIN_ISA

namespace {

constexpr int64_t kTaskBytes = 256 << 10;  // some ten microseconds of copying: claims cost nothing, the end stays even
constexpr int64_t kStreamRowBytes = 256;   // of shorter rows, too many lines are shared by two rows
constexpr int64_t kPrefetchBytes = 4096;   // how far ahead rows are asked for: no hardware foresees where they lie

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A [rows, columns] rectangle cut into blocks; task t is one of them.
struct Blocks {
  int64_t rows, columns, block_rows, block_columns;

  int64_t column_blocks() const { return divide_up(columns, block_columns); }
  int64_t size() const { return divide_up(rows, block_rows) * column_blocks(); }

  struct Block {
    int64_t row_begin, row_end, column_begin, column_end;
  };
  Block operator[](int64_t task) const {
    const int64_t row = task / column_blocks() * block_rows, column = task % column_blocks() * block_columns;
    return {row, std::min(row + block_rows, rows), column, std::min(column + block_columns, columns)};
  }
};

// Rows of one small number each.
template <class T>
void gather_elements(const GatherParams& p, int64_t begin, int64_t end) {
  const char* src = static_cast<const char*>(p.src);
  T* out = static_cast<T*>(p.out);
  for (int64_t i = begin; i < end; ++i) std::memcpy(out + i, src + p.index[i] * p.src_stride, sizeof(T));
}

}  // namespace

void gather(const GatherParams& p, const Executor& executor) {
  if (p.num_rows == 0 || p.row_bytes == 0) return;
  const bool stream = p.num_rows * p.row_bytes > kStreamBytes && p.row_bytes >= kStreamRowBytes;
  const Blocks blocks = {p.num_rows, p.row_bytes, std::max<int64_t>(1, kTaskBytes / p.row_bytes),
                         std::min(p.row_bytes, kTaskBytes)};
  executor.for_each(blocks.size(), [&](int64_t task, int) {
    const auto [begin, end, column, column_end] = blocks[task];
    switch (p.row_bytes) {
      case 1:
        return gather_elements<uint8_t>(p, begin, end);
      case 2:
        return gather_elements<uint16_t>(p, begin, end);
      case 4:
        return gather_elements<uint32_t>(p, begin, end);
      case 8:
        return gather_elements<uint64_t>(p, begin, end);
    }
    const char* src = static_cast<const char*>(p.src) + column;
    char* out = static_cast<char*>(p.out) + column;
    const int64_t ahead = divide_up(kPrefetchBytes, column_end - column);
    for (int64_t i = begin; i < end; ++i) {
      const char* from = src + p.index[i] * p.src_stride;
      char* to = out + i * p.row_bytes;
      if (stream)
        stream_copy(to, from, column_end - column, src + p.index[std::min(i + ahead, p.num_rows - 1)] * p.src_stride);
      else
        std::memcpy(to, from, column_end - column);
    }
    if (stream) stream_fence();
  });
}

namespace {

constexpr int64_t kSumColumns = 1024;  // sums of one row under way: 4 or 8 KiB, a part of the first cache

// The rows of src that a task sums, one after the other; `source(k + ahead)` is the one to ask for while reading k.
template <class S>
struct SourceRows {
  const S* src;
  const int64_t* order;
  int64_t stride, last, ahead;

  const S* operator()(int64_t k) const { return src + order[std::min(k, last)] * stride; }
};

// kVectors vectors of one destination row, in registers while its sources pass; a single one may be short (`count`).
template <class S, int kVectors>
void sum_columns(ComputeOf<S>* to, bool stream, const SourceRows<S>& source, int64_t begin, int64_t end, int64_t column,
                 int count = 0) {
  using T = ComputeOf<S>;
  constexpr int kLane = kLanes<T>;
  Vector<T> sum[kVectors];
  for (int64_t k = begin; k < end; ++k) {
    const S* row = source(k) + column;
    const char* next = reinterpret_cast<const char*>(source(k + source.ahead) + column);
    for (int64_t byte = 0; byte < int64_t(kVectors * kLane * sizeof(S)); byte += 64) __builtin_prefetch(next + byte);
    REGROW_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const Vector<T> x = kVectors > 1 ? Number<S>::read(row + v * kLane) : read_first(row, count);
      sum[v] = k == begin ? x : sum[v] + x;
    }
  }
  REGROW_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    T* place = to + column + v * kLane;
    if (kVectors == 1)
      store_first(place, sum[v], count);
    else if (stream)
      stream_vector(reinterpret_cast<char*>(place), (Vector<float>)sum[v]);
    else
      store(place, sum[v]);
  }
}

template <class S>
void sum_row(ComputeOf<S>* to, bool stream, const SourceRows<S>& source, int64_t begin, int64_t end, int64_t columns) {
  constexpr int kLane = kLanes<ComputeOf<S>>;
  stream = stream && reinterpret_cast<intptr_t>(to) % kVectorBytes == 0;
  int64_t c = 0;
  for (; c + 16 * kLane <= columns; c += 16 * kLane) sum_columns<S, 16>(to, stream, source, begin, end, c);
  for (; c + 4 * kLane <= columns; c += 4 * kLane) sum_columns<S, 4>(to, stream, source, begin, end, c);
  for (; c < columns; c += kLane)
    sum_columns<S, 1>(to, false, source, begin, end, c, int(std::min<int64_t>(kLane, columns - c)));
}

template <class S>
void sum_block(const ScatterParams& p, const Blocks::Block& block, bool stream) {
  using T = ComputeOf<S>;
  alignas(64) static constexpr S kZeros[kSumColumns] = {};
  const int64_t columns = block.column_end - block.column_begin, bytes = columns * int64_t(sizeof(S));
  const SourceRows<S> source = {static_cast<const S*>(p.src) + block.column_begin, p.order, p.src_stride,
                                p.num_src_rows - 1, divide_up(kPrefetchBytes, bytes)};
  const auto copy = [&](S* to, const S* from, const S* next) {
    if (stream)
      stream_copy(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), bytes,
                  reinterpret_cast<const char*>(next));
    else
      std::memcpy(to, from, bytes);
  };
  for (int64_t r = block.row_begin; r < block.row_end; ++r) {
    const int64_t begin = p.start[r], end = p.start[r + 1];
    S* out = static_cast<S*>(p.out) + r * p.row_size + block.column_begin;
    if (begin == end) {
      copy(out, kZeros, kZeros);
    } else if (end - begin == 1) {
      copy(out, source(begin), source(begin + source.ahead));
    } else if constexpr (std::is_same_v<S, T>) {
      sum_row<S>(out, stream, source, begin, end, columns);
    } else {
      alignas(64) T sums[kSumColumns];
      alignas(64) S rounded[kSumColumns];
      sum_row<S>(sums, false, source, begin, end, columns);
      for (int64_t c = 0; c < columns; c += kLanes<T>) Number<S>::write(rounded + c, load(sums + c));
      copy(out, rounded, kZeros);
    }
  }
  if (stream) stream_fence();
}

// Rows shorter than a vector.
template <class S>
void sum_short_rows(const ScatterParams& p, int64_t row_begin, int64_t row_end) {
  const S* src = static_cast<const S*>(p.src);
  S* out = static_cast<S*>(p.out);
  for (int64_t r = row_begin; r < row_end; ++r)
    for (int64_t c = 0; c < p.row_size; ++c) {
      ComputeOf<S> sum = 0;
      for (int64_t i = p.start[r]; i < p.start[r + 1]; ++i) sum += Number<S>::from(src[p.order[i] * p.src_stride + c]);
      out[r * p.row_size + c] = Number<S>::to(sum);
    }
}

template <class S>
void scatter_as(const ScatterParams& p, const Executor& executor) {
  int64_t largest_count = 0;
  for (int64_t r = 0; r < p.num_rows; ++r) largest_count = std::max(largest_count, p.start[r + 1] - p.start[r]);
  const int64_t row_bytes = p.row_size * int64_t(sizeof(S));
  // Few destinations of very many sources: their columns keep the workers busy.
  const bool lopsided = largest_count * 16 > p.num_src_rows + p.num_rows;
  const int64_t widest = lopsided ? 1024 / int64_t(sizeof(S)) : kSumColumns;
  const int64_t mean_count = 1 + p.num_src_rows / p.num_rows;
  const Blocks blocks = {p.num_rows, p.row_size, std::max<int64_t>(1, kTaskBytes / (row_bytes * mean_count)),
                         std::min(p.row_size, widest)};
  const bool is_short = p.row_size < kLanes<ComputeOf<S>>;
  const bool stream = p.num_rows * row_bytes > kStreamBytes && row_bytes >= kStreamRowBytes;
  executor.for_each(blocks.size(), [&](int64_t task, int) {
    const Blocks::Block block = blocks[task];
    if (is_short)
      sum_short_rows<S>(p, block.row_begin, block.row_end);
    else
      sum_block<S>(p, block, stream);
  });
}

}  // namespace

void scatter(const ScatterParams& p, const Executor& executor) {
  if (p.num_rows == 0 || p.row_size == 0) return;
  switch (p.dtype) {
    case DType::kFloat64:
      return scatter_as<double>(p, executor);
    case DType::kFloat32:
      return scatter_as<float>(p, executor);
    case DType::kBFloat16:
      return scatter_as<bfloat16>(p, executor);
    case DType::kFloat16:
      return scatter_as<float16>(p, executor);
    // Sums of integers wrap: they are the same in int64 and in their own width.
    case DType::kInt64:
      return scatter_as<uint64_t>(p, executor);
    case DType::kInt32:
      return scatter_as<uint32_t>(p, executor);
    case DType::kInt16:
      return scatter_as<uint16_t>(p, executor);
    case DType::kInt8:
    case DType::kUInt8:
      return scatter_as<uint8_t>(p, executor);
  }
}

REGROW_END_ISA
