#include "cpu/lse_merge.h"

#include <algorithm>
#include <cmath>

#include "cpu/merge_state.h"

REGROW_BEGIN_ISA
namespace {

constexpr int64_t kQueriesPerTask = 64;

template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kFloat64) return f(double());
  return f(float());
}

template <class T>
struct Partials {
  explicit Partials(const LseMergeParams& p)
      : p(p), outs(static_cast<const T*>(p.outs)), lses(static_cast<const T*>(p.lses)) {}

  int64_t lse_at(int64_t partial, int head, int64_t query) const {
    return (partial * p.heads + head) * p.num_queries + query;
  }
  int64_t out_at(int64_t partial, int head, int64_t query) const {
    return ((partial * p.num_queries + query) * p.heads + head) * p.value_dim;
  }
  T sink(int head) const { return p.sinks ? static_cast<const T*>(p.sinks)[head] : -kInfinity<T>; }

  const LseMergeParams& p;
  const T *outs, *lses;
};

template <class F>
void for_each_query(const LseMergeParams& p, const Executor& executor, const F& f) {
  executor.for_each((p.num_queries + kQueriesPerTask - 1) / kQueriesPerTask, [&](int64_t task, int) {
    const int64_t end = std::min((task + 1) * kQueriesPerTask, p.num_queries);
    for (int64_t query = task * kQueriesPerTask; query < end; ++query)
      for (int head = 0; head < p.heads; ++head) f(head, query);
  });
}

template <class T>
void merge_row(const Partials<T>& in, int head, int64_t query) {
  const LseMergeParams& p = in.p;
  T top = in.sink(head);
  for (int64_t i = 0; i < p.num_partials; ++i) top = larger_lse<T>(top, in.lses[in.lse_at(i, head, query)]);
  T total = top;
  if (!std::isinf(top)) {
    T sum = state_weight<T>(in.sink(head), top);
    for (int64_t i = 0; i < p.num_partials; ++i) sum += state_weight<T>(in.lses[in.lse_at(i, head, query)], top);
    total = top + std::log(sum);
  }
  static_cast<T*>(p.lse)[in.lse_at(0, head, query)] = total;
  T* out = static_cast<T*>(p.out) + in.out_at(0, head, query);
  std::fill(out, out + p.value_dim, T(0));
  for (int64_t i = 0; i < p.num_partials; ++i) {
    const T lse = in.lses[in.lse_at(i, head, query)];
    if (lse == -kInfinity<T>) continue;  // its out may be anything
    const T weight = state_weight<T>(lse, total);
    const T* from = in.outs + in.out_at(i, head, query);
    for (int d = 0; d < p.value_dim; ++d) out[d] += weight * from[d];
  }
}

// dout_p = w_p dout; dlse_p = w_p (dlse + dout . (out_p - out)).
template <class T>
void differentiate_row(const Partials<T>& in, const LseMergeBackwardParams& p, int head, int64_t query) {
  const T* dout = static_cast<const T*>(p.dout) + in.out_at(0, head, query);
  const T* out = static_cast<const T*>(p.out) + in.out_at(0, head, query);
  const T lse = static_cast<const T*>(p.lse)[in.lse_at(0, head, query)];
  const T dlse = p.dlse ? static_cast<const T*>(p.dlse)[in.lse_at(0, head, query)] : T(0);
  for (int64_t i = 0; i < p.num_partials; ++i) {
    const int64_t at = in.lse_at(i, head, query);
    const bool seen = in.lses[at] != -kInfinity<T>;
    const T weight = state_weight<T>(in.lses[at], lse);
    const T* from = in.outs + in.out_at(i, head, query);
    T* dfrom = static_cast<T*>(p.douts) + in.out_at(i, head, query);
    T dot = 0;
    for (int d = 0; d < p.value_dim; ++d) {
      if (seen) dot += dout[d] * (from[d] - out[d]);
      dfrom[d] = seen ? weight * dout[d] : T(0);
    }
    static_cast<T*>(p.dlses)[at] = seen ? weight * (dlse + dot) : T(0);
  }
}

// The sink's partial has out 0: dsink = sum of w (dlse - dout . out), over queries in order.
template <class T>
T differentiate_sink(const Partials<T>& in, const LseMergeBackwardParams& p, int head) {
  T sum = 0;
  for (int64_t query = 0; query < p.num_queries; ++query) {
    const T* dout = static_cast<const T*>(p.dout) + in.out_at(0, head, query);
    const T* out = static_cast<const T*>(p.out) + in.out_at(0, head, query);
    const T lse = static_cast<const T*>(p.lse)[in.lse_at(0, head, query)];
    T dot = p.dlse ? static_cast<const T*>(p.dlse)[in.lse_at(0, head, query)] : T(0);
    for (int d = 0; d < p.value_dim; ++d) dot -= dout[d] * out[d];
    sum += state_weight<T>(in.sink(head), lse) * dot;
  }
  return sum;
}

}  // namespace

void lse_merge(const LseMergeParams& p, const Executor& executor) {
  with_type(p.dtype, [&](auto zero) {
    const Partials<decltype(zero)> in(p);
    for_each_query(p, executor, [&](int head, int64_t query) { merge_row(in, head, query); });
  });
}

void lse_merge_backward(const LseMergeBackwardParams& p, const Executor& executor) {
  with_type(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Partials<T> in(p);
    for_each_query(p, executor, [&](int head, int64_t query) { differentiate_row(in, p, head, query); });
    if (p.dsinks)
      executor.for_each(
          p.heads, [&](int64_t head, int) { static_cast<T*>(p.dsinks)[head] = differentiate_sink(in, p, int(head)); });
  });
}

REGROW_END_ISA
