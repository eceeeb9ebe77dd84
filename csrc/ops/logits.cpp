#include <torch/csrc/stable/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "cpu/kernel_table.h"
#include "ops/checks.h"
#include "ops/current_stream.h"

namespace regrow::ops {

namespace {

LogitsParams logits_params(const Tensor& logits, double temperature, std::optional<double> softcap) {
  CHECK(logits.dim() == 2 && (logits.stride(1) == 1 || logits.size(1) == 1),
        "logits must be [rows, vocabulary] with a contiguous last dimension, got shape ", shape(logits));
  CHECK(logits.size(1) > 0 || logits.size(0) == 0, "logits have an empty vocabulary");
  CHECK(temperature > 0 && std::isfinite(temperature), "temperature is ", temperature, ", must be positive and finite");
  CHECK(!softcap || (*softcap > 0 && std::isfinite(*softcap)), "softcap is ", softcap.value_or(0),
        ", must be positive and finite, or None");
  return {.logits = const_cast<void*>(logits.const_data_ptr()),
          .dtype = floating_dtype(logits, "logits"),
          .num_rows = logits.size(0),
          .vocabulary = logits.size(1),
          .row_stride = logits.stride(0),
          .temperature = temperature,
          .softcap = softcap.value_or(0),
          .lse = nullptr,
          .entropy = nullptr};
}

void check_vector(const Tensor& t, int64_t size, ScalarType dtype, const char* what) {
  CHECK(t.dim() == 1 && t.size(0) == size && t.scalar_type() == dtype && t.is_contiguous(), what,
        " must be a contiguous [", size, "] ",
        dtype == ScalarType::Long ? "int64" : (dtype == ScalarType::Double ? "float64" : "float32"),
        " tensor, got shape ", shape(t));
}

void check_tokens(const Tensor& target_token, int64_t vocabulary) {
  const int64_t* tokens = target_token.const_data_ptr<int64_t>();
  for (int64_t n = 0; n < target_token.size(0); ++n)
    CHECK(tokens[n] >= 0 && tokens[n] < vocabulary, "target_token[", n, "] is ", tokens[n],
          ", outside the vocabulary of ", vocabulary);
}

void check_rows(const Tensor& target_row, int64_t num_rows) {
  const int64_t* rows = target_row.const_data_ptr<int64_t>();
  for (int64_t n = 0; n < target_row.size(0); ++n)
    CHECK(rows[n] >= 0 && rows[n] < num_rows, "target_row[", n, "] is ", rows[n], ", but there are ", num_rows,
          " rows");
}

// Of logits_row_grad_: targets sorted by row, then token.
void check_sorted(const LogitsGradParams& p) {
  CHECK(p.row_start[0] == 0 && p.row_start[p.rows.num_rows] == p.num_targets, "row_start must run from 0 to ",
        p.num_targets, ", got ", p.row_start[0], " to ", p.row_start[p.rows.num_rows]);
  for (int64_t r = 0; r < p.rows.num_rows; ++r)
    CHECK(p.row_start[r] <= p.row_start[r + 1], "row_start[", r + 1, "] is below row_start[", r, "]");
  for (int64_t r = 0; r < p.rows.num_rows; ++r)
    for (int64_t n = p.row_start[r] + 1; n < p.row_start[r + 1]; ++n)
      CHECK(p.target_token[n - 1] <= p.target_token[n], "target_token[", n, "] is below its predecessor in row ", r,
            ": sort the targets by row, then by token");
}

std::tuple<Tensor, Tensor> logits_row_stats(const Tensor& logits, double temperature, std::optional<double> softcap) {
  check_one_device({{"logits", &logits}});
  LogitsParams p = logits_params(logits, temperature, softcap);
  const std::vector<int64_t> rows = {p.num_rows};
  Tensor lse = torch::stable::new_empty(logits, rows, ScalarType::Double);
  Tensor entropy = torch::stable::new_empty(logits, rows, accumulation_type(p.dtype));
  p.lse = lse.mutable_data_ptr<double>();
  p.entropy = entropy.mutable_data_ptr();
  if (logits.is_cuda())
    cuda::logits_row_stats(p, CurrentStream(logits));
  else
    cpu::kernels().logits_row_stats(p, executor(logits.numel()));
  return {lse, entropy};
}

Tensor logits_pick(const Tensor& logits, const Tensor& lse, const Tensor& target_row, const Tensor& target_token,
                   double temperature, std::optional<double> softcap) {
  check_one_device({{"logits", &logits}, {"lse", &lse}, {"target_row", &target_row}, {"target_token", &target_token}});
  LogitsPickParams p = {.rows = logits_params(logits, temperature, softcap)};
  check_vector(lse, p.rows.num_rows, ScalarType::Double, "lse");
  check_vector(target_row, target_row.numel(), ScalarType::Long, "target_row");
  check_vector(target_token, target_row.numel(), ScalarType::Long, "target_token");
  p.rows.lse = const_cast<double*>(lse.const_data_ptr<double>());
  p.target_row = target_row.const_data_ptr<int64_t>();
  p.target_token = target_token.const_data_ptr<int64_t>();
  p.num_targets = target_row.numel();
  Tensor logp = torch::stable::new_empty(logits, std::vector<int64_t>{p.num_targets}, accumulation_type(p.rows.dtype));
  p.logp = logp.mutable_data_ptr();
  if (logits.is_cuda()) {
    cuda::logits_pick(p, CurrentStream(logits));  // its kernel checks the values
  } else {
    check_tokens(target_token, p.rows.vocabulary);
    check_rows(target_row, p.rows.num_rows);
    cpu::kernels().logits_pick(p, executor(p.num_targets));
  }
  return logp;
}

void logits_row_grad(Tensor logits, const Tensor& lse, const Tensor& entropy, const Tensor& row_start,
                     const Tensor& target_token, const Tensor& dlogp, const std::optional<Tensor>& dentropy,
                     double temperature, std::optional<double> softcap) {
  check_one_device({{"logits", &logits},
                    {"lse", &lse},
                    {"entropy", &entropy},
                    {"row_start", &row_start},
                    {"target_token", &target_token},
                    {"dlogp", &dlogp},
                    {"dentropy", pointer(dentropy)}});
  LogitsGradParams p = {.rows = logits_params(logits, temperature, softcap)};
  const int64_t num_rows = p.rows.num_rows, num_targets = target_token.numel();
  const ScalarType accumulation = accumulation_type(p.rows.dtype);
  CHECK(num_rows <= 1 || p.rows.row_stride >= p.rows.vocabulary, "logits have rows of ", p.rows.vocabulary,
        " at a stride of ", p.rows.row_stride, ": rows that share memory cannot be written, clone the logits");
  check_vector(lse, num_rows, ScalarType::Double, "lse");
  check_vector(entropy, num_rows, accumulation, "entropy");
  check_vector(row_start, num_rows + 1, ScalarType::Long, "row_start");
  check_vector(target_token, num_targets, ScalarType::Long, "target_token");
  check_vector(dlogp, num_targets, accumulation, "dlogp");
  if (dentropy) check_vector(*dentropy, num_rows, accumulation, "dentropy");
  p.row_start = row_start.const_data_ptr<int64_t>();
  p.target_token = target_token.const_data_ptr<int64_t>();
  p.num_targets = num_targets;
  p.rows.lse = const_cast<double*>(lse.const_data_ptr<double>());
  p.rows.entropy = const_cast<void*>(entropy.const_data_ptr());
  p.dlogp = dlogp.const_data_ptr();
  p.dentropy = dentropy ? dentropy->const_data_ptr() : nullptr;
  p.rows.logits = logits.mutable_data_ptr();
  if (logits.is_cuda()) {
    cuda::logits_row_grad(p, CurrentStream(logits));  // its kernel checks the values
  } else {
    check_tokens(target_token, p.rows.vocabulary);
    check_sorted(p);
    cpu::kernels().logits_row_grad(p, executor(logits.numel()));
  }
}

template <class Library>
void implement(Library& m) {
  m.impl("logits_row_stats", TORCH_BOX(&logits_row_stats));
  m.impl("logits_pick", TORCH_BOX(&logits_pick));
  m.impl("logits_row_grad_", TORCH_BOX(&logits_row_grad));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(regrow, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(regrow, CUDA, m) { implement(m); }

}  // namespace regrow::ops
