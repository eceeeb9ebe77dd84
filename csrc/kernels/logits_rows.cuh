#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/logits_params.h"
#include "platform/numbers.h"
#include "platform/require.h"
#include "tile/copy.h"
#include "tile/reduce.h"

namespace regrow {

struct LogitsRowConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMaxRegisters = 64;  // 4 blocks per SM: the kernel waits for memory
};

// x = scale * u(logit), with u = tanh(logit / softcap) and scale = softcap / temperature, or u = logit without softcap.
// Differences of x are formed as scale * (u - reference): near the maximum they keep all their digits.
template <class T, bool kCapped>
struct LogitScale {
  DEVICE explicit LogitScale(const LogitsParams& p)
      : scale((kCapped ? p.softcap : 1) / p.temperature), inverse_softcap(T(kCapped ? 1 / p.softcap : 0)) {}

  DEVICE T bounded(T logit) const {
    if constexpr (kCapped) return std::tanh(logit * inverse_softcap);
    return logit;
  }

  double scale;
  T inverse_softcap;
};

template <class T>
DEVICE T larger(T a, T b) {
  return b > a || b != b ? b : a;  // a NaN stays
}

// Log2 of a probability that is 0, kept finite: 0 * log 0 is 0.
template <class T>
constexpr T kLowestLog2 = sizeof(T) == 8 ? T(-2044) : T(-252);

template <class T>
struct LogitsRowSmem {
  SharedArray<double, LogitsRowConfig::kThreads / kWarpLanes> sums, moments;
  SharedArray<T, LogitsRowConfig::kThreads / kWarpLanes> tops;
};

// One block per row: lse (fp64) and entropy. kValues of 16 bytes together where rows are multiples of that, else 1.
template <class S, bool kCapped, int kValues>
GLOBAL void LAUNCH_BOUNDS(LogitsRowConfig::kThreads) logits_row_stats(const LogitsParams p) {
  using T = typename SumOf<S>::Type;
  constexpr int kThreads = LogitsRowConfig::kThreads;
  SHARED(LogitsRowSmem<T>, smem);
  const int64_t row = block_index();
  const S* logits = static_cast<const S*>(p.logits) + row * p.row_stride;
  const LogitScale<T, kCapped> x(p);

  const T scale_log2 = T(x.scale * 1.4426950408889634);
  // log2 of a weight relative to the largest; finite where the probability is 0: 0 * log 0 is 0.
  const auto log2_weight = [&](T bounded, T reference) {
    const T lowest = sizeof(T) == 8 ? T(-2044) : T(-252);
    const T d = (bounded - reference) * scale_log2;
    return d < lowest ? lowest : d;
  };
  T top = -T(INFINITY), reference = x.bounded(top);  // of this thread's values so far
  T sum = 0, moment = 0;                             // of w = 2^d and of w * d, d = log2_weight
  const auto raise = [&](T to) {
    const T before = reference;
    top = to;
    reference = x.bounded(top);
    if (sum == 0) return;
    const T shift = log2_weight(before, reference), factor = std::exp2(shift);
    moment = (moment + sum * shift) * factor;
    sum *= factor;
  };
  // The compiler would unroll the fp64 loop into spills; a load of 16 bytes a thread is enough under way.
  NO_UNROLL
  for (int64_t j = int64_t(thread_index()) * kValues; j < p.vocabulary; j += kThreads * kValues) {
    const auto loaded = load_values<S, kValues>(logits + j);
    T largest = top;
    UNROLL
    for (int v = 0; v < kValues; ++v) largest = larger(largest, to_sum(loaded[v]));
    if (largest != top) raise(largest);
    if (reference == -T(INFINITY)) continue;  // weights relative to it would be NaN, and are 0 beside any other
    UNROLL
    for (int v = 0; v < kValues; ++v) {
      const T d = log2_weight(x.bounded(to_sum(loaded[v])), reference);
      const T w = std::exp2(d);
      sum += w;
      moment += w * d;
    }
  }
  const T row_top = reduce_block<kThreads>(smem.tops, top, [](T a, T b) { return larger(a, b); });
  raise(row_top);
  if (reference == -T(INFINITY)) sum = T(NAN);  // nothing has a probability
  const auto add = [](double a, double b) { return a + b; };
  const double row_sum = reduce_block<kThreads>(smem.sums, double(sum), add);
  const double row_moment = reduce_block<kThreads>(smem.moments, double(moment), add);
  if (thread_index() > 0) return;
  const double log_sum = std::log(row_sum);
  store_global(p.lse + row, x.scale * reference + log_sum);
  store_global(static_cast<T*>(p.entropy) + row, T(log_sum - row_moment * 0.6931471805599453 / row_sum));
}

// One thread per target.
template <class S, bool kCapped>
GLOBAL void LAUNCH_BOUNDS(LogitsRowConfig::kThreads) logits_pick(const LogitsPickParams p) {
  using T = typename SumOf<S>::Type;
  const int64_t target = block_index() * LogitsRowConfig::kThreads + thread_index();
  if (target >= p.num_targets) return;
  const int64_t row = load_global(p.target_row + target), token = load_global(p.target_token + target);
  require(row >= 0 && row < p.rows.num_rows,
          "target_row must be in [0, rows of logits): look at target_row.min() and .max()");
  require(token >= 0 && token < p.rows.vocabulary,
          "target_token must be in [0, vocabulary): look at target_token.min() and .max()");
  const S logit = load_global(static_cast<const S*>(p.rows.logits) + row * p.rows.row_stride + token);
  const LogitScale<T, kCapped> x(p.rows);
  const double logp = x.scale * x.bounded(to_sum(logit)) - load_global(p.rows.lse + row);
  store_global(static_cast<T*>(p.logp) + target, T(logp));
}

// Whether rows can be read and written `values` values, 16 bytes, at a time.
inline bool rows_of_16_bytes(const LogitsParams& p, int values) {
  return p.vocabulary % values == 0 && p.row_stride % values == 0 && reinterpret_cast<intptr_t>(p.logits) % 16 == 0;
}

// f(S(), std::bool_constant) for the dtype of the logits and whether they are capped.
template <class F>
void dispatch_logits(const LogitsParams& p, const F& f) {
  const auto with_cap = [&](auto number) {
    return p.softcap ? f(number, std::true_type()) : f(number, std::false_type());
  };
  if (p.dtype == DType::kFloat64) return with_cap(double());
  if (p.dtype == DType::kFloat32) return with_cap(float());
  return p.dtype == DType::kBFloat16 ? with_cap(bf16()) : with_cap(fp16());
}

// launch(shape, kernel, p) with the instantiation that p asks for.
template <class Launch>
void dispatch_logits_row_stats(const LogitsParams& p, const Launch& launch) {
  if (p.num_rows == 0) return;
  dispatch_logits(p, [&](auto number, auto capped) {
    using S = decltype(number);
    using T = typename SumOf<S>::Type;
    constexpr int kValues = 16 / sizeof(S);
    const LaunchShape shape = {
        .blocks = p.num_rows, .threads = LogitsRowConfig::kThreads, .shared_bytes = sizeof(LogitsRowSmem<T>)};
    if (rows_of_16_bytes(p, kValues))
      launch(shape, &logits_row_stats<S, decltype(capped)::value, kValues>, p);
    else
      launch(shape, &logits_row_stats<S, decltype(capped)::value, 1>, p);
  });
}

template <class Launch>
void dispatch_logits_pick(const LogitsPickParams& p, const Launch& launch) {
  if (p.num_targets == 0) return;
  constexpr int kThreads = LogitsRowConfig::kThreads;
  const LaunchShape shape = {.blocks = (p.num_targets + kThreads - 1) / kThreads, .threads = kThreads};
  dispatch_logits(p.rows, [&](auto number, auto capped) {
    launch(shape, &logits_pick<decltype(number), decltype(capped)::value>, p);
  });
}

}  // namespace regrow
