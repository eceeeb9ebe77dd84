#include "cpu/head.h"

#include <algorithm>

#include "cpu/arena.h"
#include "cpu/matmul.h"
#include "cpu/pack.h"

REGROW_BEGIN_ISA
namespace {

// Tiles of the three products. A packed block of the weight is read by all rows, and stays in L2 with what it meets.
constexpr int kVocabulary = 128;  // columns of logits, rows of dweight
constexpr int kSlice = 256;       // of a summed dimension: what one packed block spans
constexpr int kRows = 128;        // rows of logits
constexpr int kGradientRows = 256;
constexpr int kGradientColumns = 320;  // of dhidden

static_assert(std::max({kVocabulary, kSlice, kGradientColumns}) <= kMaxPackedDim);

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int part(int64_t total, int64_t begin, int most) { return int(std::min<int64_t>(total - begin, most)); }

// [rows, width] from a row and a column on.
Rows at(const void* data, DType dtype, int64_t stride, int64_t column) {
  const int64_t size = dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
  return {static_cast<const char*>(data) + column * size, dtype, stride, 0};
}

template <class P>
class Head {
  using Acc = typename P::Acc;
  using Element = typename P::Element;
  static constexpr DType kAccType = sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32;

 public:
  Head(const HeadParams& p, int num_workers) : p_(p), num_workers_(num_workers), slices_(divide_up(p.width, kSlice)) {}

  int64_t carve(void* workspace) {
    Arena arena(workspace);
    hidden_ = arena.take<Element>(slices_ * divide_up(p_.num_rows, P::kPack) * P::kPack * kSlice);
    scratch_ = arena.take<char>(scratch_bytes() * num_workers_);
    return arena.bytes();
  }

  void forward(const HeadForwardParams& p, const Executor& executor) {
    carve(p.workspace);
    executor.for_each(slices_, [&](int64_t slice, int) {
      const int width = part(p.width, slice * kSlice, kSlice);
      pack_rows<P>(hidden_slice(slice), at(p.hidden, p.dtype, p.hidden_stride, slice * kSlice),
                   {0, int(p.num_rows), 0, 1, width});
    });
    executor.for_each(divide_up(p.vocabulary, kVocabulary),
                      [&](int64_t block, int worker) { logits_block(p, block * kVocabulary, worker); });
  }

  void backward(const HeadBackwardParams& p, const Executor& executor) {
    carve(p.workspace);
    if (p.dhidden) {
      const int64_t column_blocks = divide_up(p.width, kGradientColumns);
      executor.for_each(divide_up(p.num_rows, kGradientRows) * column_blocks, [&](int64_t task, int worker) {
        dhidden_block(p, task / column_blocks * kGradientRows, task % column_blocks * kGradientColumns, worker);
      });
    }
    if (!p.dweight) return;
    executor.for_each(slices_, [&](int64_t slice, int) {
      const int width = part(p.width, slice * kSlice, kSlice);
      pack_as_rows<P>(hidden_slice(slice), at(p.hidden, p.dtype, p.hidden_stride, slice * kSlice),
                      {0, int(p.num_rows), 0, 1, width}, int(p.num_rows));
    });
    executor.for_each(divide_up(p.vocabulary, kVocabulary),
                      [&](int64_t block, int worker) { dweight_block(p, block * kVocabulary, worker); });
  }

 private:
  Element* hidden_slice(int64_t slice) const {
    return hidden_ + slice * divide_up(p_.num_rows, P::kPack) * P::kPack * kSlice;
  }

  // The largest of the three products' needs: packed operands and a block of sums.
  int64_t scratch_bytes() const {
    const int64_t rows = divide_up(p_.num_rows, P::kPack) * P::kPack;
    const int64_t logits =
        slices_ * kSlice * kVocabulary * sizeof(Element) + int64_t(kRows) * kVocabulary * sizeof(Acc);
    const int64_t dhidden = int64_t(kSlice) * (kGradientRows + kGradientColumns) * sizeof(Element) +
                            int64_t(kGradientRows) * kGradientColumns * sizeof(Acc);
    const int64_t dweight = rows * kVocabulary * sizeof(Element) + int64_t(kVocabulary) * kSlice * sizeof(Acc);
    return (std::max({logits, dhidden, dweight}) + 4 * Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
  }
  Arena scratch(int worker) const { return Arena(scratch_ + worker * scratch_bytes()); }

  void logits_block(const HeadForwardParams& p, int64_t first_token, int worker) {
    const int tokens = part(p.vocabulary, first_token, kVocabulary);
    Arena arena = scratch(worker);
    Element* weight = arena.take<Element>(slices_ * kSlice * kVocabulary);
    Acc* sums = arena.take<Acc>(int64_t(kRows) * kVocabulary);
    for (int64_t slice = 0; slice < slices_; ++slice)
      pack_as_columns<P>(weight + slice * kSlice * kVocabulary, at(p.weight, p.dtype, p.weight_stride, slice * kSlice),
                         {first_token, tokens, 0, 1, part(p.width, slice * kSlice, kSlice)}, tokens);
    for (int64_t first_row = 0; first_row < p.num_rows; first_row += kRows) {
      const int rows = part(p.num_rows, first_row, kRows);
      for (int64_t slice = 0; slice < slices_; ++slice) {
        const int depth = elements<P>(part(p.width, slice * kSlice, kSlice));
        const MatrixA<P> a = {hidden_slice(slice) + first_row * depth, depth};
        const MatrixB<P> b = {weight + slice * kSlice * kVocabulary, depth};
        if (slice == 0)
          multiply<P, Into::kReplace, false>({sums, kVocabulary}, a, b, rows, tokens, depth);
        else
          multiply<P, Into::kAdd, false>({sums, kVocabulary}, a, b, rows, tokens, depth);
      }
      for (int row = 0; row < rows; ++row)
        std::memcpy(static_cast<Acc*>(p.logits) + (first_row + row) * p.vocabulary + first_token,
                    sums + int64_t(row) * kVocabulary, tokens * sizeof(Acc));
    }
  }

  void dhidden_block(const HeadBackwardParams& p, int64_t first_row, int64_t first_column, int worker) {
    const int rows = part(p.num_rows, first_row, kGradientRows);
    const int columns = part(p.width, first_column, kGradientColumns);
    Arena arena = scratch(worker);
    Element* dlogits = arena.take<Element>(int64_t(kGradientRows) * kSlice);
    Element* weight = arena.take<Element>(int64_t(kSlice) * kGradientColumns);
    Acc* sums = arena.take<Acc>(int64_t(kGradientRows) * kGradientColumns);
    std::fill(sums, sums + int64_t(kGradientRows) * kGradientColumns, Acc(0));
    for (int64_t token = 0; token < p.vocabulary; token += kSlice) {
      const int tokens = part(p.vocabulary, token, kSlice);
      pack_rows<P>(dlogits, at(p.dlogits, kAccType, p.vocabulary, token), {first_row, rows, 0, 1, tokens});
      pack_as_rows<P>(weight, at(p.weight, p.dtype, p.weight_stride, first_column), {token, tokens, 0, 1, columns},
                      tokens);
      multiply<P, Into::kAdd, false>({sums, kGradientColumns}, {dlogits, elements<P>(tokens)},
                                     {weight, elements<P>(tokens)}, rows, columns, elements<P>(tokens));
    }
    for (int row = 0; row < rows; ++row)
      std::memcpy(static_cast<Acc*>(p.dhidden) + (first_row + row) * p.width + first_column,
                  sums + int64_t(row) * kGradientColumns, columns * sizeof(Acc));
  }

  void dweight_block(const HeadBackwardParams& p, int64_t first_token, int worker) {
    const int tokens = part(p.vocabulary, first_token, kVocabulary);
    const int depth = elements<P>(int(p.num_rows));
    Arena arena = scratch(worker);
    Element* dlogits = arena.take<Element>(int64_t(depth) * P::kPack * kVocabulary);
    Acc* sums = arena.take<Acc>(int64_t(kVocabulary) * kSlice);
    pack_as_rows<P>(dlogits, at(p.dlogits, kAccType, p.vocabulary, first_token), {0, int(p.num_rows), 0, 1, tokens},
                    int(p.num_rows));
    for (int64_t slice = 0; slice < slices_; ++slice) {
      const int width = part(p.width, slice * kSlice, kSlice);
      // A panel of packed dlogits is a transposed operand: its columns are rows of the result.
      for (int token = 0; token < tokens; token += kPanel<P>)
        multiply<P, Into::kReplace, true>({sums + int64_t(token) * kSlice, kSlice},
                                          {dlogits + int64_t(token) * depth, kPanel<P>}, {hidden_slice(slice), depth},
                                          std::min(kPanel<P>, tokens - token), width, depth);
      for (int token = 0; token < tokens; ++token) {
        Acc* row = static_cast<Acc*>(p.dweight) + (first_token + token) * p.width + slice * kSlice;
        for (int i = 0; i < width; ++i) row[i] += sums[int64_t(token) * kSlice + i];
      }
    }
  }

  const HeadParams& p_;
  int num_workers_;
  int64_t slices_;
  Element* hidden_ = nullptr;  // per slice: operand A [num_rows, width], or B, a row a hidden row
  char* scratch_ = nullptr;
};

template <class F>
auto with_head_operands(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f.template operator()<Fp64>();
    case DType::kBFloat16:
      return f.template operator()<Bf16Operand>();
    case DType::kFloat32:
    case DType::kFloat16:
      return f.template operator()<Fp32>();
    default:
      CHECK(false, "not a floating dtype: ", name(dtype));
  }
}

}  // namespace

int64_t head_workspace(const HeadParams& p, int num_workers) {
  return with_head_operands(p.dtype, [&]<class P>() { return Head<P>(p, num_workers).carve(nullptr); });
}

void head_forward(const HeadForwardParams& p, const Executor& executor) {
  with_head_operands(p.dtype, [&]<class P>() { Head<P>(p, executor.num_workers).forward(p, executor); });
}

void head_backward(const HeadBackwardParams& p, const Executor& executor) {
  with_head_operands(p.dtype, [&]<class P>() { Head<P>(p, executor.num_workers).backward(p, executor); });
}

REGROW_END_ISA
