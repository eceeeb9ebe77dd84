#include "cpu/logits.h"

#include <algorithm>
#include <cmath>

#include "cpu/exponential.h"
#include "cpu/numbers.h"
#include "platform/check.h"

REGROW_BEGIN_ISA

namespace {

constexpr int64_t kTaskElements = 32 << 10;  // of logits: rows of a small vocabulary share a task
constexpr int64_t kBlock = 2048;             // elements summed in the compute type before fp64 takes over

// x = scale * u(logit), with u = tanh(logit / softcap) and scale = softcap / temperature, or u = logit without softcap.
// Differences of x are formed as scale * (u - reference): near the maximum they keep all their digits.
template <class S, bool kCapped>
struct Row {
  using T = ComputeOf<S>;
  static constexpr int kLane = kLanes<T>;

  double scale, inverse_softcap, inverse_temperature;

  explicit Row(const LogitsParams& p)
      : scale((kCapped ? p.softcap : 1) / p.temperature),
        inverse_softcap(kCapped ? 1 / p.softcap : 0),
        inverse_temperature(1 / p.temperature) {}

  Vector<T> bounded(Vector<T> logit) const {
    if constexpr (kCapped) return tanh<T>(logit * T(inverse_softcap));
    return logit;
  }
  double x(S logit) const { return scale * bounded(broadcast(Number<S>::from(logit)))[0]; }
  // dx / dlogit
  Vector<T> slope(Vector<T> u) const {
    const Vector<T> one = broadcast(T(inverse_temperature));
    if constexpr (kCapped) return one * (T(1) - u * u);
    return one;
  }
};

// log2 of a probability, kept finite where the probability is 0: 0 * log 0 is 0 then, and NaN stays NaN.
template <class T>
constexpr T kLowestLog2 = 2 * ExpTraits<T>::kSmallest;
template <class T>
Vector<T> finite_log2(Vector<T> x) {
  return x < kLowestLog2<T> ? broadcast(kLowestLog2<T>) : x;
}

// The first `count` lanes of x, the others `fill`.
template <class T>
Vector<T> first_lanes(Vector<T> x, int64_t count, T fill) {
  return iota<T>() < T(count) ? x : broadcast(fill);
}

template <class S>
ComputeOf<S> largest(const S* row, int64_t size) {
  using T = ComputeOf<S>;
  constexpr int kLane = kLanes<T>;
  Vector<T> top[4];
  for (auto& t : top) t = broadcast(-kInfinity<T>);
  int64_t j = 0;
  for (; j + 4 * kLane <= size; j += 4 * kLane) {
    REGROW_UNROLL
    for (int i = 0; i < 4; ++i) top[i] = max<T>(top[i], Number<S>::read(row + j + i * kLane));
  }
  for (; j < size; j += kLane) {
    const int count = int(std::min<int64_t>(kLane, size - j));
    top[0] = max<T>(top[0], first_lanes<T>(read_first(row + j, count), count, -kInfinity<T>));
  }
  return reduce_max<T>(max<T>(max<T>(top[0], top[1]), max<T>(top[2], top[3])));
}

template <class S, bool kCapped>
void row_stats(const LogitsParams& p, const Row<S, kCapped>& row, int64_t r) {
  using T = ComputeOf<S>;
  constexpr int kLane = kLanes<T>;
  const S* logits = static_cast<const S*>(p.logits) + r * p.row_stride;
  const T reference = row.bounded(broadcast(largest(logits, p.vocabulary)))[0];
  const T scale_log2 = T(row.scale * kLog2E);

  const auto log2_weight = [&](Vector<T> logit) {
    return finite_log2<T>((row.bounded(logit) - reference) * scale_log2);
  };
  double sum = 0, moment = 0;  // of w = 2^d and of w * d, d = log2 of the weight relative to the largest
  for (int64_t block = 0; block < p.vocabulary; block += kBlock) {
    const int64_t end = std::min(block + kBlock, p.vocabulary);
    Vector<T> sums[2] = {}, moments[2] = {};
    const auto add = [&](Vector<T> d, int i) {
      const Vector<T> w = exp2<T>(d);
      sums[i] += w;
      moments[i] += w * d;
    };
    int64_t j = block;
    for (; j + 2 * kLane <= end; j += 2 * kLane) {
      add(log2_weight(Number<S>::read(logits + j)), 0);
      add(log2_weight(Number<S>::read(logits + j + kLane)), 1);
    }
    for (; j < end; j += kLane) {
      const int count = int(std::min<int64_t>(kLane, end - j));
      add(first_lanes<T>(log2_weight(read_first(logits + j, count)), count, kLowestLog2<T>), 0);
    }
    sum += reduce_add<T>(sums[0] + sums[1]);
    moment += reduce_add<T>(moments[0] + moments[1]);
  }
  const double log_sum = std::log(sum);
  p.lse[r] = row.scale * reference + log_sum;
  static_cast<T*>(p.entropy)[r] = T(log_sum - moment * kLn2 / sum);
}

// dL/dx_j = [j is a target] dlogp - p_j * (sum of dlogp + dentropy * (log p_j + entropy)), then dL/dlogit.
template <class S, bool kCapped>
void row_grad(const LogitsGradParams& p, const Row<S, kCapped>& row, int64_t r) {
  using T = ComputeOf<S>;
  constexpr int kLane = kLanes<T>;
  const T* dlogp = static_cast<const T*>(p.dlogp);
  S* logits = static_cast<S*>(p.rows.logits) + r * p.rows.row_stride;

  int64_t target = p.row_start[r];
  const int64_t target_end = p.row_start[r + 1];
  double dlogp_sum = 0;
  for (int64_t n = target; n < target_end; ++n) dlogp_sum += dlogp[n];
  const double dentropy = p.dentropy ? double(static_cast<const T*>(p.dentropy)[r]) : 0;
  const double entropy = p.dentropy ? double(static_cast<const T*>(p.rows.entropy)[r]) : 0;
  const T constant = T(dlogp_sum + dentropy * entropy), slope = T(dentropy * kLn2);

  // log2 p = (u - reference) * scale_log2 - rest: the reference is the lse rounded to T, the rest what that lost.
  const T reference = T(p.rows.lse[r] / row.scale);
  const T rest = T((p.rows.lse[r] - row.scale * reference) * kLog2E);
  const T scale_log2 = T(row.scale * kLog2E);

  for (int64_t j = 0; j < p.rows.vocabulary; j += kLane) {
    const int count = int(std::min<int64_t>(kLane, p.rows.vocabulary - j));
    const Vector<T> u = row.bounded(read_first(logits + j, count));
    const Vector<T> log2_p = finite_log2<T>((u - reference) * scale_log2 - rest);
    Vector<T> dx = -exp2<T>(log2_p) * (constant + slope * log2_p);
    while (target < target_end && p.target_token[target] < j + kLane) {
      const int64_t token = p.target_token[target];
      double label = 0;
      for (; target < target_end && p.target_token[target] == token; ++target) label += dlogp[target];
      dx[token - j] += T(label);
    }
    write_first(logits + j, dx * row.slope(u), count);
  }
}

template <class S, bool kCapped>
void for_each_row(const LogitsParams& p, const Executor& executor, const auto& body) {
  const Row<S, kCapped> row(p);
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, p.vocabulary));
  executor.for_each((p.num_rows + rows_per_task - 1) / rows_per_task, [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * rows_per_task, p.num_rows);
    for (int64_t r = task * rows_per_task; r < end; ++r) body(row, r);
  });
}

template <class S, bool kCapped>
void pick(const LogitsPickParams& p, const Executor& executor) {
  constexpr int64_t kTargetsPerTask = 1024;
  const Row<S, kCapped> row(p.rows);
  const S* logits = static_cast<const S*>(p.rows.logits);
  executor.for_each((p.num_targets + kTargetsPerTask - 1) / kTargetsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * kTargetsPerTask, p.num_targets);
    for (int64_t n = task * kTargetsPerTask; n < end; ++n) {
      const int64_t r = p.target_row[n];
      const double x = row.x(logits[r * p.rows.row_stride + p.target_token[n]]);
      static_cast<ComputeOf<S>*>(p.logp)[n] = ComputeOf<S>(x - p.rows.lse[r]);
    }
  });
}

// f.template operator()<storage type, has a softcap>()
void dispatch(const LogitsParams& p, const auto& f) {
  const auto with_softcap = [&]<class S>() {
    return p.softcap > 0 ? f.template operator()<S, true>() : f.template operator()<S, false>();
  };
  switch (p.dtype) {
    case DType::kFloat64:
      return with_softcap.template operator()<double>();
    case DType::kFloat32:
      return with_softcap.template operator()<float>();
    case DType::kBFloat16:
      return with_softcap.template operator()<bfloat16>();
    case DType::kFloat16:
      return with_softcap.template operator()<float16>();
    default:
      CHECK(false, "not a floating dtype: ", name(p.dtype));
  }
}

}  // namespace

void logits_row_stats(const LogitsParams& p, const Executor& executor) {
  dispatch(p, [&]<class S, bool kCapped>() {
    for_each_row<S, kCapped>(p, executor, [&](const auto& row, int64_t r) { row_stats<S, kCapped>(p, row, r); });
  });
}

void logits_pick(const LogitsPickParams& p, const Executor& executor) {
  dispatch(p.rows, [&]<class S, bool kCapped>() { pick<S, kCapped>(p, executor); });
}

void logits_row_grad(const LogitsGradParams& p, const Executor& executor) {
  dispatch(p.rows, [&]<class S, bool kCapped>() {
    for_each_row<S, kCapped>(p.rows, executor, [&](const auto& row, int64_t r) { row_grad<S, kCapped>(p, row, r); });
  });
}

REGROW_END_ISA
