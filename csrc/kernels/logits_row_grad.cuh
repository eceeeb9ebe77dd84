#pragma once

#include "kernels/logits_rows.cuh"

namespace regrow {

struct LogitsGradSmem {
  SharedArray<double, LogitsRowConfig::kThreads / kWarpLanes> sums;
};

// The first of the targets [begin, end) whose token is not below `token`.
DEVICE int64_t first_target(const int64_t* tokens, int64_t begin, int64_t end, int64_t token) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (load_global(tokens + middle) < token)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// One block per row, in place: dL/dx_j = [j is a target] dlogp - p_j (sum of dlogp + dentropy (log p_j + entropy)),
// then dL/dlogit. The label is subtracted in the type of the sums, and rounded once, at the store. A value is read and
// written by one thread.
template <class S, bool kCapped, int kValues>
GLOBAL void LAUNCH_BOUNDS(LogitsRowConfig::kThreads) logits_row_grad(const LogitsGradParams p) {
  using T = typename SumOf<S>::Type;
  constexpr int kThreads = LogitsRowConfig::kThreads;
  SHARED(LogitsGradSmem, smem);
  const int64_t row = block_index();
  const int64_t begin = load_global(p.row_start + row), end = load_global(p.row_start + row + 1);
  require(begin <= end && (row == 0 ? begin == 0 : begin >= 0) &&
              (row + 1 == p.rows.num_rows ? end == p.num_targets : end <= p.num_targets),
          "row_start must ascend from 0 to the number of targets: row r owns [row_start[r], row_start[r + 1])");

  double dlogp = 0;
  for (int64_t n = begin + thread_index(); n < end; n += kThreads) {
    const int64_t token = load_global(p.target_token + n);
    require(token >= 0 && token < p.rows.vocabulary,
            "target_token must be in [0, vocabulary): look at target_token.min() and .max()");
    require(n == begin || load_global(p.target_token + n - 1) <= token,
            "target_token must ascend within a row: sort the targets by row, then by token");
    dlogp += load_global(static_cast<const T*>(p.dlogp) + n);
  }
  dlogp = reduce_block<kThreads>(smem.sums, dlogp, [](double a, double b) { return a + b; });

  const LogitScale<T, kCapped> x(p.rows);
  const double lse = load_global(p.rows.lse + row);
  const double dentropy = p.dentropy ? load_global(static_cast<const T*>(p.dentropy) + row) : T(0);
  const double entropy = p.dentropy ? load_global(static_cast<const T*>(p.rows.entropy) + row) : T(0);
  const T constant = T(dlogp + dentropy * entropy), slope = T(dentropy * 0.6931471805599453);
  // log2 p = (u - reference) * scale_log2 - rest: the reference is the lse rounded to T, the rest what that lost.
  const T reference = T(lse / x.scale);
  const T rest = T((lse - x.scale * reference) * 1.4426950408889634);
  const T scale_log2 = T(x.scale * 1.4426950408889634), inverse_temperature = T(1 / p.rows.temperature);

  S* logits = static_cast<S*>(p.rows.logits) + row * p.rows.row_stride;
  const int64_t nobody = p.rows.vocabulary;
  int64_t target = begin, wanted = begin < end ? load_global(p.target_token + begin) : nobody;
  NO_UNROLL
  for (int64_t j = int64_t(thread_index()) * kValues; j < p.rows.vocabulary; j += kThreads * kValues) {
    if (wanted < j) {  // other threads have those before
      target = first_target(p.target_token, target, end, j);
      wanted = target < end ? load_global(p.target_token + target) : nobody;
    }
    auto values = load_values<S, kValues>(logits + j);
    UNROLL
    for (int v = 0; v < kValues; ++v) {
      const T u = x.bounded(to_sum(values[v]));
      const T difference = (u - reference) * scale_log2 - rest;
      const T log2_p = difference < kLowestLog2<T> ? kLowestLog2<T> : difference;
      T dx = -std::exp2(log2_p) * (constant + slope * log2_p);
      if (wanted == j + v) {
        double label = 0;
        while (wanted == j + v) {
          label += load_global(static_cast<const T*>(p.dlogp) + target);
          wanted = ++target < end ? load_global(p.target_token + target) : nobody;
        }
        dx += T(label);
      }
      values[v] = from_sum<S>(dx * (kCapped ? inverse_temperature * (1 - u * u) : inverse_temperature));
    }
    store_values(logits + j, values);
  }
}

// launch(shape, kernel, p) with the instantiation that p asks for.
template <class Launch>
void dispatch_logits_row_grad(const LogitsGradParams& p, const Launch& launch) {
  if (p.rows.num_rows == 0) return;
  dispatch_logits(p.rows, [&](auto number, auto capped) {
    using S = decltype(number);
    constexpr int kValues = 16 / sizeof(S);
    const LaunchShape shape = {
        .blocks = p.rows.num_rows, .threads = LogitsRowConfig::kThreads, .shared_bytes = sizeof(LogitsGradSmem)};
    if (rows_of_16_bytes(p.rows, kValues))
      launch(shape, &logits_row_grad<S, decltype(capped)::value, kValues>, p);
    else
      launch(shape, &logits_row_grad<S, decltype(capped)::value, 1>, p);
  });
}

}  // namespace regrow
