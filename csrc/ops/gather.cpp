#include <torch/csrc/stable/library.h>

#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/sort_sources.h"
#include "ops/aten.h"
#include "ops/checks.h"
#include "ops/current_stream.h"

namespace regrow::ops {

namespace {

// Rows whose elements are contiguous, at any distance from each other: a slice of a wider tensor needs no copy.
Tensor dense_rows(const Tensor& t) {
  int64_t expected = 1;
  for (int64_t d = t.dim() - 1; d >= 1; --d) {
    if (t.size(d) != 1 && t.stride(d) != expected) return torch::stable::contiguous(t);
    expected *= t.size(d);
  }
  return t.stride(0) < 0 ? torch::stable::contiguous(t) : t;
}

int64_t row_size(const Tensor& t) {
  int64_t size = 1;
  for (int64_t d = 1; d < t.dim(); ++d) size *= t.size(d);
  return size;
}

// The contiguous index. Every entry is in [0, num_rows): the kernels check that on CUDA, whose memory the host would
// have to wait for.
Tensor checked_index(const Tensor& index, const Tensor& src, int64_t num_rows) {
  check_one_device({{"src", &src}, {"index", &index}});
  CHECK(index.dim() == 1 && index.scalar_type() == ScalarType::Long, "index must be a 1-D int64 tensor, got ",
        index.scalar_type() == ScalarType::Long ? "int64" : "another dtype", " of shape ", shape(index));
  const Tensor contiguous = torch::stable::contiguous(index);
  const int64_t size = index.numel();
  if (index.is_cuda()) {
    CHECK(size == 0 || num_rows > 0, "index has ", size, " entries, but there are 0 rows");
    return contiguous;
  }
  const int64_t* values = contiguous.const_data_ptr<int64_t>();
  uint64_t sign = 0;  // of a negative value, or of one beyond the last row
  for (int64_t i = 0; i < size; ++i) sign |= uint64_t(values[i]) | (uint64_t(num_rows) - 1 - uint64_t(values[i]));
  for (int64_t i = 0; int64_t(sign) < 0 && i < size; ++i)
    CHECK(values[i] >= 0 && values[i] < num_rows, "index[", i, "] is ", values[i], ", but there are ", num_rows,
          num_rows == 1 ? " row" : " rows",
          num_rows ? ": the valid range is 0 to " + std::to_string(num_rows - 1) : "");
  return contiguous;
}

std::vector<int64_t> with_rows(const Tensor& src, int64_t num_rows) {
  std::vector<int64_t> sizes(src.sizes().begin(), src.sizes().end());
  sizes[0] = num_rows;
  return sizes;
}

struct Bytes {
  const char *begin, *end;
};
Bytes extent(const Tensor& t) {
  const char* data = static_cast<const char*>(t.const_data_ptr());
  if (t.numel() == 0) return {data, data};
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return {data, data + (last + 1) * int64_t(t.element_size())};
}

void check_out(const Tensor& out, const Tensor& src, const Tensor& index, int64_t num_rows) {
  check_one_device({{"src", &src}, {"out", &out}});
  CHECK(out.scalar_type() == src.scalar_type() && out.is_contiguous(),
        "out must be a contiguous tensor of the dtype and device of src");
  bool same_rows = out.dim() == src.dim() && out.size(0) == num_rows;
  for (int64_t d = 1; same_rows && d < src.dim(); ++d) same_rows = out.size(d) == src.size(d);
  if (!same_rows) {
    std::string wanted = "[" + std::to_string(num_rows);
    for (int64_t d = 1; d < src.dim(); ++d) wanted += ", " + std::to_string(src.size(d));
    CHECK(false, "out has shape ", shape(out), ", but the result has shape ", wanted, "]");
  }
  const Bytes written = extent(out);
  for (const Tensor* input : {&src, &index}) {
    const Bytes read = extent(*input);
    CHECK(written.end <= read.begin || read.end <= written.begin || written.begin == written.end,
          "out shares memory with ", input == &src ? "src" : "index", ": pass a tensor of its own");
  }
}

void check_src(const Tensor& src) {
  CHECK(src.dim() >= 1, "src must have at least one dimension, its rows; got a 0-D tensor");
}

void gather_into(const Tensor& src, const Tensor& index, const Tensor& out) {
  const Tensor rows = dense_rows(src);
  const int64_t element_bytes = int64_t(src.element_size());
  const GatherParams p = {.src = rows.const_data_ptr(),
                          .index = index.const_data_ptr<int64_t>(),
                          .out = out.mutable_data_ptr(),
                          .num_src_rows = src.size(0),
                          .num_rows = index.numel(),
                          .src_stride = rows.stride(0) * element_bytes,
                          .row_bytes = row_size(src) * element_bytes};
  if (src.is_cuda())
    cuda::replay_gather(p, CurrentStream(src));
  else
    cpu::kernels().gather(p, executor(out.numel()));
}

Tensor replay_gather(const Tensor& src, const Tensor& index) {
  check_src(src);
  const Tensor checked = checked_index(index, src, src.size(0));
  Tensor out = torch::stable::new_empty(src, with_rows(src, index.numel()));
  gather_into(src, checked, out);
  return out;
}

void replay_gather_out(const Tensor& src, const Tensor& index, Tensor out) {
  check_src(src);
  const Tensor checked = checked_index(index, src, src.size(0));
  check_out(out, src, index, index.numel());
  gather_into(src, checked, out);
}

DType check_scatter(const Tensor& src, const Tensor& index) {
  check_src(src);
  CHECK(index.dim() != 1 || index.numel() == src.size(0), "src has ", src.size(0), " rows, index has ", index.numel(),
        " entries: one for each row");
  const auto dtype = dtype_of(src);
  CHECK(dtype,
        "src is of a dtype that replay_scatter cannot sum: bool or complex, say. Sum floats or integers instead "
        "(torch.view_as_real(src) of complex numbers, src.to(torch.int32) of booleans)");
  return *dtype;
}

// Of ScatterParams.
struct Sources {
  Tensor start, order;
};

Sources sort_sources(const Tensor& index, int64_t num_rows) {
  using torch::stable::new_empty;
  if (index.is_cuda()) {
    const auto [values, order] = aten::stable_sort(index);
    return {aten::searchsorted(values, aten::arange(index, num_rows + 1)), order};
  }
  Sources sources = {.start = new_empty(index, std::vector<int64_t>{num_rows + 1}),
                     .order = torch::stable::empty_like(index)};
  cpu::sort_sources(index.const_data_ptr<int64_t>(), index.numel(), num_rows, sources.start.mutable_data_ptr<int64_t>(),
                    sources.order.mutable_data_ptr<int64_t>());
  return sources;
}

void scatter_into(const Tensor& src, const Tensor& index, DType dtype, const Tensor& out) {
  const Tensor rows = dense_rows(src);
  const Sources sources = sort_sources(index, out.size(0));
  const ScatterParams p = {.src = rows.const_data_ptr(),
                           .start = sources.start.const_data_ptr<int64_t>(),
                           .order = sources.order.const_data_ptr<int64_t>(),
                           .out = out.mutable_data_ptr(),
                           .num_src_rows = index.numel(),
                           .num_rows = out.size(0),
                           .src_stride = rows.stride(0),
                           .row_size = row_size(src),
                           .dtype = dtype};
  if (src.is_cuda())
    cuda::replay_scatter(p, CurrentStream(src));
  else
    cpu::kernels().scatter(p, executor(src.numel()));
}

Tensor replay_scatter(const Tensor& src, const Tensor& index, int64_t num_rows) {
  const DType dtype = check_scatter(src, index);
  CHECK(num_rows >= 0, "num_rows is ", num_rows, ", must not be negative");
  const Tensor checked = checked_index(index, src, num_rows);
  Tensor out = torch::stable::new_empty(src, with_rows(src, num_rows));
  scatter_into(src, checked, dtype, out);
  return out;
}

void replay_scatter_out(const Tensor& src, const Tensor& index, Tensor out) {
  const DType dtype = check_scatter(src, index);
  CHECK(out.dim() >= 1, "out must have at least one dimension, its rows; got a 0-D tensor");
  const Tensor checked = checked_index(index, src, out.size(0));
  check_out(out, src, index, out.size(0));
  scatter_into(src, checked, dtype, out);
}

template <class Library>
void implement(Library& m) {
  m.impl("replay_gather", TORCH_BOX(&replay_gather));
  m.impl("replay_gather_out", TORCH_BOX(&replay_gather_out));
  m.impl("replay_scatter", TORCH_BOX(&replay_scatter));
  m.impl("replay_scatter_out", TORCH_BOX(&replay_scatter_out));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) { implement(m); }

}  // namespace regrow::ops
