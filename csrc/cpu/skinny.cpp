#include "cpu/skinny.h"

#include <algorithm>

#include "cpu/arena.h"
#include "cpu/pack.h"

REGROW_BEGIN_ISA
namespace {

// Blocks of rows of the weight by rows of input, a vector of sums for each pair: what the registers hold. One stream
// from memory is the fastest; where there are rows enough to multiply, more outputs a block read each row less often.
constexpr int kStreamRows = kVectorBytes == 64 ? 12 : 6;
constexpr int kBlockOutputs = 4, kBlockRows = kStreamRows / 2;
constexpr int64_t kTaskBytes = 64 << 10;  // of the weight: some microseconds, and L2 keeps them for all rows of input

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The weight is read once, in its order; no operand is packed, which would cost more than the product.
template <class S>
class Skinny {
  using Acc = ComputeOf<S>;
  static constexpr int kWidth = kLanes<Acc>;

 public:
  explicit Skinny(const SkinnyParams& p) : p_(p), whole_(p.width / kWidth * kWidth) {}

  int64_t carve(void* workspace) {
    Arena arena(workspace);
    if (reads_input()) {
      input_ = static_cast<const Acc*>(p_.input);
      stride_ = p_.input_stride;
      return 0;
    }
    stride_ = divide_up(p_.width, kWidth) * kWidth;
    input_ = widened_ = arena.take<Acc>(p_.num_rows * stride_);
    return arena.bytes();
  }

  void run(const Executor& executor) {
    carve(p_.workspace);
    for (int64_t row = 0; row < p_.num_rows && widened_; ++row) widen(row);
    const int64_t row_bytes = std::max<int64_t>(1, p_.width) * int64_t(sizeof(S));
    const int64_t task_outputs = divide_up(kTaskBytes / kBlockOutputs, row_bytes) * kBlockOutputs;
    executor.for_each(divide_up(p_.num_outputs, task_outputs), [&](int64_t task, int) {
      const int64_t begin = task * task_outputs, end = std::min(p_.num_outputs, begin + task_outputs);
      if (p_.num_rows <= kStreamRows)
        multiply_all<1, kStreamRows>(begin, end);
      else
        multiply_all<kBlockOutputs, kBlockRows>(begin, end);
    });
  }

 private:
  // Whether rows of input are what the sums multiply.
  bool reads_input() const { return std::is_same_v<S, Acc> && p_.width % kWidth == 0; }

  // A row of input in the sums' type, zeros behind it.
  void widen(int64_t row) {
    const S* from = static_cast<const S*>(p_.input) + row * p_.input_stride;
    for (int64_t k = 0; k < stride_; k += kWidth)
      store(widened_ + row * stride_ + k, read_first<S>(from + k, int(std::min<int64_t>(p_.width - k, kWidth))));
  }

  template <int kNumOutputs, int kMostRows>
  void multiply_all(int64_t begin, int64_t end) {
    for (int64_t row = 0; row < p_.num_rows; row += kMostRows) {
      int64_t output = begin;
      for (; output + kNumOutputs <= end; output += kNumOutputs) multiply<kNumOutputs, kMostRows>(output, row);
      for (; output < end; ++output) multiply<1, kMostRows>(output, row);
    }
  }

  // The sums of each pair run in an order that depends on the width alone.
  template <int kNumOutputs, int kMostRows>
  void multiply(int64_t first_output, int64_t first_row) {
    if constexpr (kMostRows > 1)
      if (p_.num_rows - first_row < kMostRows) return multiply<kNumOutputs, kMostRows - 1>(first_output, first_row);
    const S* weight = static_cast<const S*>(p_.weight) + first_output * p_.weight_stride;
    const Acc* input = input_ + first_row * stride_;
    Vector<Acc> sums[kNumOutputs][kMostRows] = {};
    const auto add = [&](int64_t k, const auto& read) {
      Vector<Acc> rows[kMostRows];
      REGROW_UNROLL
      for (int row = 0; row < kMostRows; ++row) rows[row] = load(input + row * stride_ + k);
      REGROW_UNROLL
      for (int i = 0; i < kNumOutputs; ++i) {
        const Vector<Acc> w = read(weight + i * p_.weight_stride + k);
        REGROW_UNROLL
        for (int row = 0; row < kMostRows; ++row) sums[i][row] += w * rows[row];
      }
    };
    for (int64_t k = 0; k < whole_; k += kWidth) add(k, [](const S* at) { return Number<S>::read(at); });
    if (whole_ < p_.width) add(whole_, [&](const S* at) { return read_first<S>(at, int(p_.width - whole_)); });
    for (int row = 0; row < kMostRows; ++row) {
      Acc values[kWidth > kNumOutputs ? kWidth : kNumOutputs] = {};
      for (int i = 0; i < kNumOutputs; ++i) values[i] = reduce_add<Acc>(sums[i][row]);
      write<kNumOutputs>(values, first_row + row, first_output);
    }
  }

  template <int kNumOutputs>
  void write(Acc* values, int64_t row, int64_t first_output) {
    if (p_.bias)
      for (int i = 0; i < kNumOutputs; ++i)
        values[i] += Acc(Number<S>::from(static_cast<const S*>(p_.bias)[first_output + i]));
    const int64_t place = row * p_.num_outputs + first_output;
    if (p_.wide)
      std::memcpy(static_cast<Acc*>(p_.out) + place, values, kNumOutputs * sizeof(Acc));
    else
      for (int i = 0; i < kNumOutputs; i += kWidth)
        write_first<S>(static_cast<S*>(p_.out) + place + i, load(values + i), kNumOutputs - i);
  }

  const SkinnyParams& p_;
  int64_t whole_;  // what whole vectors cover of a row
  const Acc* input_ = nullptr;
  Acc* widened_ = nullptr;
  int64_t stride_ = 0;
};

}  // namespace

int64_t skinny_workspace(const SkinnyParams& p) {
  int64_t bytes = 0;
  with_storage(p.dtype, [&]<class S>() { bytes = Skinny<S>(p).carve(nullptr); });
  return bytes;
}

void skinny(const SkinnyParams& p, const Executor& executor) {
  with_storage(p.dtype, [&]<class S>() { Skinny<S>(p).run(executor); });
}

REGROW_END_ISA
