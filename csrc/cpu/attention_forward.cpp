#include <cmath>

#include "cpu/attention.h"
#include "cpu/attention_forward_operands.h"
#include "cpu/matmul.h"
#include "cpu/merge_state.h"

REGROW_BEGIN_ISA
namespace {

template <class P, bool kGeneral>
class Forward {
  using Acc = typename P::Acc;
  using Element = typename P::Element;
  static constexpr int kWidth = kLanes<Acc>;

 public:
  Forward(const AttentionForwardParams& p, int num_workers) : p_(p), g_(p), scale_(p), num_workers_(num_workers) {}

  int64_t carve(void* workspace) {
    Arena arena(workspace);
    shared_.carve(arena, g_);
    Arena measure(nullptr);
    Scratch<P>().carve(measure, g_);
    scratch_bytes_ = measure.bytes();
    scratch_ = arena.take<char>(scratch_bytes_ * num_workers_);
    return arena.bytes();
  }

  void run(const Executor& executor) {
    carve(p_.workspace);
    shared_.fill(p_.rectangle, p_.plan);
    if (!packs_on_use(g_))
      executor.for_each(int64_t(g_.header.num_key_tiles) * g_.kv_heads, [&](int64_t task, int) {
        const int tile = int(task / g_.kv_heads), head = int(task % g_.kv_heads);
        if (shared_.seen_until[tile]) pack_keys(packed_keys(tile, head), tile, head);
      });
    executor.for_each(int64_t(g_.header.num_forward_items) * g_.kv_heads, [&](int64_t task, int worker) {
      attend(p_.plan.forward_items()[task / g_.kv_heads], int(task % g_.kv_heads), worker);
    });
    executor.for_each(int64_t(g_.header.num_merges) * g_.kv_heads,
                      [&](int64_t task, int) { merge(p_.plan.merges()[task / g_.kv_heads], int(task % g_.kv_heads)); });
  }

 private:
  PackedKeys<P> packed_keys(int tile, int head) const {
    return shared_.keys.at(g_, int64_t(head) * g_.header.num_key_tiles + tile);
  }

  void pack_keys(PackedKeys<P> to, int tile, int head) {
    const int keys = g_.keys(tile);
    const int64_t first = int64_t(tile) * g_.header.key_tile;
    pack_as_columns<P>(to.k, p_.k, {first, keys, head, 1, g_.head_dim, shared_.masks.unseen}, g_.header.key_tile);
    pack_as_rows<P>(to.v, p_.v, {first, keys, head, 1, g_.value_dim, shared_.masks.unseen}, g_.header.key_tile);
  }

  void attend(const ForwardItem& item, int head, int worker) {
    Scratch<P> s;
    Arena arena(scratch_ + worker * scratch_bytes_);
    s.carve(arena, g_);
    const int tokens = g_.query_tokens(item.query_tile);
    const int rows = tokens * g_.group;
    const int64_t first_query = int64_t(item.query_tile) * g_.header.query_tile;
    s.queries.fill(p_.rectangle, first_query, tokens);
    pack_rows<P>(s.q, p_.q, {first_query, tokens, head * g_.group, g_.group, g_.head_dim, nullptr, true});
    std::fill(s.maximum, s.maximum + rows, -kInfinity<Acc>);
    std::fill(s.sum, s.sum + int64_t(rows) * kWidth, Acc(0));
    std::fill(s.out, s.out + int64_t(rows) * g_.padded_value_dim(), Acc(0));

    for (int i = item.run_begin; i < item.run_end; ++i) {
      const TileRun& run = p_.plan.forward_runs()[i];
      for (int tile = run.begin; tile < run.end; ++tile) attend_tile(s, tile, head, tokens, run.partial);
    }
    store_rows(s, item, head, tokens);
  }

  void attend_tile(Scratch<P>& s, int tile, int head, int num_tokens, bool partial) {
    const int keys = g_.keys(tile), key_tile = g_.header.key_tile;
    const int64_t first_key = int64_t(tile) * key_tile, first_position = p_.rectangle.key_start + first_key;
    const Tokens tokens = partial ? tokens_that_see(s, tile, num_tokens, first_position) : Tokens{0, num_tokens};
    if (tokens.begin >= tokens.end) return;
    const Columns columns = visible_columns<P>(keys, partial, first_position, shared_.masks.end + first_key,
                                               s.queries.position[tokens.begin], s.queries.position[tokens.end - 1]);
    const PackedKeys<P> packed = packs_on_use(g_) ? s.keys : packed_keys(tile, head);
    if (packs_on_use(g_)) pack_keys(packed, tile, head);
    const int depth = elements<P>(g_.head_dim), skipped = columns.begin / P::kPack;
    const int first_row = tokens.begin * g_.group, rows = tokens.count() * g_.group;
    const int weight_stride = elements<P>(key_tile), out_stride = g_.padded_value_dim();
    const MatrixA<P> q = {s.q + int64_t(first_row) * depth, depth};
    const MatrixA<P> weights = {s.weights + int64_t(first_row) * weight_stride + skipped, weight_stride};
    const MatrixB<P> k = {packed.k + int64_t(columns.begin) * depth, depth};
    const MatrixB<P> v = {packed.v + skipped * kPanel<P>, weight_stride};

    multiply<P, Into::kReplace, false>({s.scores + int64_t(first_row) * key_tile + columns.begin, key_tile}, q, k, rows,
                                       columns.count(), depth);
    const TileMask<Acc, kGeneral> mask = {
        s.queries.position, s.queries.depth,    shared_.masks.end + first_key, shared_.masks.depth + first_key,
        first_position,     p_.rectangle.window};
    const bool masked = partial || keys < key_tile;
    scale_and_mask(s, mask, first_row, rows, columns, masked);
    update_maximum(s, first_row, rows);
    take_weights(s, first_row, rows, columns);
    multiply<P, Into::kScaleAdd, false>({s.out + int64_t(first_row) * out_stride, out_stride}, weights, v, rows,
                                        g_.value_dim, elements<P>(columns.count()), s.factor + first_row);
  }

  // Those from the first key's position on, up to where the last subtree ends: of many short branches, a few.
  Tokens tokens_that_see(const Scratch<P>& s, int tile, int num_tokens, int64_t first_position) const {
    const auto *begin = s.queries.position, *end = begin + num_tokens;
    const IntOf<Acc> until = shared_.seen_until[tile];
    return {int(std::lower_bound(begin, end, IntOf<Acc>(first_position)) - begin),
            int(std::lower_bound(begin, end, until) - begin)};
  }

  // Scores to log2 units, -inf where the mask says so; leaves each row's maximum in `factor`.
  void scale_and_mask(Scratch<P>& s, const TileMask<Acc, kGeneral>& mask, int first_row, int rows, Columns columns,
                      bool masked) {
    const bool capped = kGeneral && p_.softcap != 0;
    for (int row = first_row; row < first_row + rows; ++row) {
      Acc* scores = s.scores + int64_t(row) * g_.header.key_tile;
      const int token = row / g_.group;
      Vector<Acc> maximum = broadcast(-kInfinity<Acc>);
      for (int column = columns.begin; column < columns.end; column += kWidth) {
        Vector<Acc> x = load(scores + column);
        x = capped ? tanh<Acc>(x * scale_.over_cap) * scale_.cap_log2 : x * scale_.log2;
        if (masked) x = mask.visible(token, column) ? x : broadcast(-kInfinity<Acc>);
        maximum = max<Acc>(x, maximum);
        store(scores + column, x);
      }
      s.factor[row] = reduce_max<Acc>(maximum);
    }
  }

  // A vector of rows at a time: those behind the last keep their maximum.
  void update_maximum(Scratch<P>& s, int first_row, int rows) {
    store(s.factor + first_row + rows, broadcast(-kInfinity<Acc>));
    for (int row = first_row; row < first_row + rows; row += kWidth) {
      const Vector<Acc> before = load(s.maximum + row);
      const Vector<Acc> now = max<Acc>(load(s.factor + row), before);
      store(s.maximum + row, now);
      // A row that has seen nothing stays at -inf; -inf - (-inf) would be NaN.
      const Vector<Acc> reference = now == -kInfinity<Acc> ? Vector<Acc>{} : now;
      store(s.factor + row, exp2<Acc>(before - reference));
    }
  }

  // Scores become weights, rounded for the product; their sum is not.
  void take_weights(Scratch<P>& s, int first_row, int rows, Columns columns) {
    for (int row = first_row; row < first_row + rows; ++row) {
      const Acc* scores = s.scores + int64_t(row) * g_.header.key_tile;
      Element* weights = s.weights + int64_t(row) * elements<P>(g_.header.key_tile);
      const Acc maximum = s.maximum[row] == -kInfinity<Acc> ? Acc(0) : s.maximum[row];
      Vector<Acc> sum = load(s.sum + int64_t(row) * kWidth) * s.factor[row];
      for (int column = columns.begin; column < columns.end; column += kPanel<P>) {
        const Vector<Acc> left = exp2<Acc>(load(scores + column) - maximum);
        const Vector<Acc> right = exp2<Acc>(load(scores + column + kWidth) - maximum);
        sum += left + right;
        P::store_row(weights + column / P::kPack, left, right);
      }
      store(s.sum + int64_t(row) * kWidth, sum);
    }
  }

  void store_rows(const Scratch<P>& s, const ForwardItem& item, int head, int tokens) {
    for (int row = 0; row < tokens * g_.group; ++row) {
      const Acc* out = s.out + int64_t(row) * g_.padded_value_dim();
      const Acc sum = reduce_add<Acc>(load(s.sum + int64_t(row) * kWidth));
      const bool seen = sum != 0;  // true for a NaN score, which has a weight but is no maximum
      const Acc lse = log_sum<Acc>(s.maximum[row] * Acc(kLn2), sum);
      const Acc inverse = seen ? 1 / sum : Acc(0);
      if (item.slot >= 0) {
        const int64_t slot_row = (int64_t(item.slot) * g_.kv_heads + head) * g_.max_rows + row;
        shared_.slot_lse[slot_row] = lse;
        for (int i = 0; i < g_.value_dim; ++i) shared_.slot_out[slot_row * g_.value_dim + i] = out[i] * inverse;
      } else {
        finish_row(out, inverse, lse, item.query_tile, head, row);
      }
    }
  }

  // Lets the sink in and writes a row: out = values * factor.
  void finish_row(const Acc* values, Acc factor, Acc lse, int tile, int head, int row) {
    const int query_head = head * g_.group + row % g_.group;
    const int64_t query = int64_t(tile) * g_.header.query_tile + row / g_.group;
    if (p_.sinks) {
      const Acc sink = static_cast<const Acc*>(p_.sinks)[query_head];
      const Acc top = larger_lse<Acc>(sink, lse);
      const Acc total =
          std::isinf(top) ? top : top + std::log(state_weight<Acc>(lse, top) + state_weight<Acc>(sink, top));
      if (lse != -kInfinity<Acc>) factor *= state_weight<Acc>(lse, total);
      lse = total;
    }
    static_cast<Acc*>(p_.lse)[query_head * p_.rectangle.num_queries + query] = lse;
    with_storage(p_.out_dtype, [&]<class S>() {
      using Compute = ComputeOf<S>;
      S* to = static_cast<S*>(p_.out) + (query * p_.query_heads + query_head) * p_.value_dim;
      if constexpr (std::is_same_v<Compute, Acc>) {
        for (int i = 0; i < p_.value_dim; i += kWidth)
          write_first<S>(to + i, load_first(values + i, std::min(kWidth, p_.value_dim - i)) * factor, p_.value_dim - i);
      }
    });
  }

  // The pieces of a split query tile, in key order.
  void merge(const ForwardMerge& m, int head) {
    const int tokens = g_.query_tokens(m.query_tile);
    for (int row = 0; row < tokens * g_.group; ++row) {
      const auto slot_row = [&](int slot) { return (int64_t(slot) * g_.kv_heads + head) * g_.max_rows + row; };
      Acc top = -kInfinity<Acc>;
      for (int slot = m.slot_begin; slot < m.slot_end; ++slot)
        top = larger_lse<Acc>(top, shared_.slot_lse[slot_row(slot)]);
      Acc values[kMaxHeadDim] = {}, sum = 0;
      for (int slot = m.slot_begin; slot < m.slot_end && top != -kInfinity<Acc>; ++slot) {
        const Acc weight = state_weight<Acc>(shared_.slot_lse[slot_row(slot)], top);
        const Acc* out = shared_.slot_out + slot_row(slot) * g_.value_dim;
        sum += weight;
        for (int i = 0; i < g_.value_dim; ++i) values[i] += out[i] * weight;
      }
      const bool seen = top != -kInfinity<Acc>;
      finish_row(values, seen ? 1 / sum : Acc(0), log_sum<Acc>(top, sum), m.query_tile, head, row);
    }
  }

  const AttentionForwardParams& p_;
  Geometry<P> g_;
  ScoreScale<Acc> scale_;
  int num_workers_;
  Shared<P> shared_ = {};
  char* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace

int64_t attention_forward_workspace(const AttentionForwardParams& p, int num_workers) {
  return with_operands(p,
                       [&]<class P, bool kGeneral>() { return Forward<P, kGeneral>(p, num_workers).carve(nullptr); });
}

void attention_forward(const AttentionForwardParams& p, const Executor& executor) {
  with_operands(p, [&]<class P, bool kGeneral>() { Forward<P, kGeneral>(p, executor.num_workers).run(executor); });
}

REGROW_END_ISA
