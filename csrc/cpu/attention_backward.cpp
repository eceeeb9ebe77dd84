#include <cmath>

#include "cpu/attention.h"
#include "cpu/attention_backward_operands.h"
#include "cpu/attention_tile.h"
#include "cpu/matmul.h"
#include "cpu/turns.h"

REGROW_BEGIN_ISA
namespace {

template <class P, bool kGeneral>
class Backward {
  using Acc = typename P::Acc;
  using Element = typename P::Element;
  static constexpr int kWidth = kLanes<Acc>;
  static constexpr int kPack = P::kPack;

 public:
  Backward(const AttentionBackwardParams& p, int num_workers) : p_(p), g_(p), scale_(p), num_workers_(num_workers) {}

  int64_t carve(void* workspace) {
    Arena arena(workspace);
    shared_.carve(arena, g_);
    Arena measure(nullptr);
    BackwardScratch<P>().carve(measure, g_);
    scratch_bytes_ = measure.bytes();
    scratch_ = arena.take<char>(scratch_bytes_ * num_workers_);
    return arena.bytes();
  }

  void run(const Executor& executor) {
    carve(p_.workspace);
    shared_.masks.fill(p_.rectangle, p_.plan);
    const int64_t key_tasks = int64_t(g_.header.num_key_tiles) * g_.kv_heads;
    const int64_t query_tasks = int64_t(g_.header.num_query_tiles) * g_.kv_heads;
    std::fill(shared_.key_turns, shared_.key_turns + key_tasks, 0);
    std::fill(shared_.query_turns, shared_.query_turns + query_tasks, 0);
    executor.for_each(key_tasks, [&](int64_t t, int) { pack_keys(int(t / g_.kv_heads), int(t % g_.kv_heads)); });
    executor.for_each(query_tasks, [&](int64_t t, int) { pack_queries(int(t / g_.kv_heads), int(t % g_.kv_heads)); });
    // Heads innermost: neighbours in the order of claims rarely wait for each other.
    executor.for_each(int64_t(g_.header.num_backward_items) * g_.kv_heads, [&](int64_t t, int worker) {
      differentiate(p_.plan.backward_items()[t / g_.kv_heads], int(t % g_.kv_heads), worker);
    });
    if (p_.dq)
      executor.for_each(query_tasks, [&](int64_t t, int) { add_dq(int(t / g_.kv_heads), int(t % g_.kv_heads)); });
    if (p_.dsinks) sum_dsinks();
  }

 private:
  int64_t key_index(int tile, int head) const { return int64_t(head) * g_.header.num_key_tiles + tile; }
  int64_t query_index(int tile, int head) const { return int64_t(head) * g_.header.num_query_tiles + tile; }

  void pack_keys(int tile, int head) {
    const int64_t index = key_index(tile, head);
    const int keys = g_.keys(tile), key_tile = g_.header.key_tile;
    const int64_t first = int64_t(tile) * key_tile;
    const RowRange k = {first, keys, head, 1, g_.head_dim, shared_.masks.unseen};
    const RowRange v = {first, keys, head, 1, g_.value_dim, shared_.masks.unseen};
    pack_as_columns<P>(shared_.k_columns + index * g_.key_columns(g_.head_dim), p_.k, k, key_tile);
    pack_as_columns<P>(shared_.v_columns + index * g_.key_columns(g_.value_dim), p_.v, v, key_tile);
    if (p_.dq) pack_as_rows<P>(shared_.k_rows + index * g_.key_rows(g_.head_dim), p_.k, k, key_tile);
  }

  void pack_queries(int tile, int head) {
    const int64_t index = query_index(tile, head);
    const int tokens = g_.query_tokens(tile);
    const int64_t first = int64_t(tile) * g_.header.query_tile;
    const RowRange q = {first, tokens, head * g_.group, g_.group, g_.head_dim};
    const RowRange dout = {first, tokens, head * g_.group, g_.group, g_.value_dim};
    pack_rows<P>(shared_.q + index * g_.max_rows * elements<P>(g_.head_dim), p_.q, q);
    pack_rows<P>(shared_.dout + index * g_.max_rows * elements<P>(g_.value_dim), p_.dout, dout);
    if (p_.dk) {
      pack_as_rows<P>(shared_.q_rows + index * g_.query_rows(g_.head_dim), p_.q, q, g_.max_rows);
      pack_as_rows<P>(shared_.dout_rows + index * g_.query_rows(g_.value_dim), p_.dout, dout, g_.max_rows);
    }
    Acc* dq = shared_.dq + index * g_.max_rows * g_.padded_dim();
    std::fill(dq, dq + int64_t(g_.max_rows) * g_.padded_dim(), Acc(0));
    for (int row = 0; row < tokens * g_.group; ++row) prepare_row(tile, head, tokens, row);
    if (p_.dsinks) add_dsinks(tile, head, tokens);
  }

  void prepare_row(int tile, int head, int tokens, int row) {
    const int64_t query = int64_t(tile) * g_.header.query_tile + row % tokens;
    const int query_head = head * g_.group + row / tokens;
    const int64_t at = query_head * p_.rectangle.num_queries + query;
    const Acc lse = static_cast<const Acc*>(p_.lse)[at];
    const Acc dlse = p_.dlse ? static_cast<const Acc*>(p_.dlse)[at] : Acc(0);
    const int64_t packed = query_index(tile, head) * g_.max_rows + row;
    shared_.lse_log2[packed] = lse == -kInfinity<Acc> ? kInfinity<Acc> : lse * Acc(kLog2E);
    shared_.delta[packed] = row_dot(query, query_head) - dlse;
  }

  // One term after the other, as the products sum: a row with a single key has dweight - delta = 0 to the last bit.
  Acc row_dot(int64_t query, int head) const {
    Acc dot = 0;
    with_storage(p_.out.dtype, [&]<class Out>() {
      with_storage(p_.dout.dtype, [&]<class Dout>() {
        if constexpr (std::is_same_v<ComputeOf<Out>, Acc> && std::is_same_v<ComputeOf<Dout>, Acc>) {
          const Out* out = static_cast<const Out*>(p_.out.data) + query * p_.out.row_stride + head * p_.out.head_stride;
          const Dout* dout =
              static_cast<const Dout*>(p_.dout.data) + query * p_.dout.row_stride + head * p_.dout.head_stride;
          for (int i = 0; i < g_.value_dim; ++i)
            dot += Acc(Number<Out>::from(out[i])) * Acc(Number<Dout>::from(dout[i]));
        }
      });
    });
    return dot;
  }

  // dsink = -sum(exp(sink - lse) * delta): the tile's part.
  void add_dsinks(int tile, int head, int tokens) {
    for (int h = 0; h < g_.group; ++h) {
      const int query_head = head * g_.group + h;
      const Acc sink = static_cast<const Acc*>(p_.sinks)[query_head];
      Acc sum = 0;
      for (int i = 0; i < tokens; ++i) {
        const int64_t query = int64_t(tile) * g_.header.query_tile + i;
        const Acc lse = static_cast<const Acc*>(p_.lse)[query_head * p_.rectangle.num_queries + query];
        const Acc weight = sink == -kInfinity<Acc> ? Acc(0) : std::exp(sink - lse);  // lse may be -inf as well
        sum -= weight * shared_.delta[query_index(tile, head) * g_.max_rows + h * tokens + i];
      }
      shared_.dsinks[int64_t(tile) * p_.query_heads + query_head] = sum;
    }
  }

  void sum_dsinks() {
    for (int head = 0; head < p_.query_heads; ++head) {
      Acc sum = 0;
      for (int tile = 0; tile < g_.header.num_query_tiles; ++tile)
        sum += shared_.dsinks[int64_t(tile) * p_.query_heads + head];
      static_cast<Acc*>(p_.dsinks)[head] = sum;
    }
  }

  void differentiate(const BackwardItem& item, int head, int worker) {
    BackwardScratch<P> s;
    Arena arena(scratch_ + worker * scratch_bytes_);
    s.carve(arena, g_);
    const int key_tile = g_.header.key_tile;
    std::fill(s.dk, s.dk + int64_t(key_tile) * g_.padded_dim(), Acc(0));
    std::fill(s.dv, s.dv + int64_t(key_tile) * g_.padded_value_dim(), Acc(0));
    for (int i = item.run_begin; i < item.run_end; ++i) {
      const TileRun& run = p_.plan.backward_runs()[i];
      for (int tile = run.begin; tile < run.end; ++tile) differentiate_tile(s, tile, item.key_tile, head, run.partial);
    }
    if (!p_.dk) return;
    const int64_t place = key_index(item.key_tile, head);
    const Turns turns(shared_.key_turns);
    turns.wait(place, item.turn);
    add_key_rows(p_.dk, s.dk, g_.padded_dim(), g_.head_dim, item.key_tile, head, Acc(p_.scale));
    add_key_rows(p_.dv, s.dv, g_.padded_value_dim(), g_.value_dim, item.key_tile, head, Acc(1));
    turns.next(place);
  }

  void differentiate_tile(BackwardScratch<P>& s, int query_tile, int key_tile_index, int head, bool partial) {
    const int tokens = g_.query_tokens(query_tile), rows = tokens * g_.group;
    const int keys = g_.keys(key_tile_index), key_tile = g_.header.key_tile;
    s.queries.fill(p_.rectangle, int64_t(query_tile) * g_.header.query_tile, tokens);
    const int64_t first_key = int64_t(key_tile_index) * key_tile;
    const int64_t first_position = p_.rectangle.key_start + first_key;
    const Columns columns = visible_columns<P>(keys, partial, first_position, shared_.masks.end + first_key,
                                               s.queries.position[0], s.queries.position[tokens - 1]);
    const int64_t query_at = query_index(query_tile, head), key_at = key_index(key_tile_index, head);
    const int depth = elements<P>(g_.head_dim), value_depth = elements<P>(g_.value_dim);

    const MatrixA<P> q = {shared_.q + query_at * g_.max_rows * depth, depth};
    const MatrixA<P> dout = {shared_.dout + query_at * g_.max_rows * value_depth, value_depth};
    const MatrixB<P> k = {shared_.k_columns + key_at * g_.key_columns(g_.head_dim) + int64_t(columns.begin) * depth,
                          depth};
    const MatrixB<P> v = {
        shared_.v_columns + key_at * g_.key_columns(g_.value_dim) + int64_t(columns.begin) * value_depth, value_depth};
    const int first = columns.begin, count = columns.count();
    multiply<P, Into::kReplace, false>({s.scores + first, key_tile}, q, k, rows, count, depth);
    multiply<P, Into::kReplace, false>({s.dweights + first, key_tile}, dout, v, rows, count, value_depth);

    const TileMask<Acc, kGeneral> mask = {
        s.queries.position, s.queries.depth,    shared_.masks.end + first_key, shared_.masks.depth + first_key,
        first_position,     p_.rectangle.window};
    const int64_t packed_row = query_at * g_.max_rows;
    if (partial || keys < key_tile)
      differentiate_scores<true>(s, mask, tokens, columns, packed_row);
    else
      differentiate_scores<false>(s, mask, tokens, columns, packed_row);

    if (p_.dk) {
      const MatrixB<P> q_rows = {shared_.q_rows + query_at * g_.query_rows(g_.head_dim), elements<P>(g_.max_rows)};
      const MatrixB<P> dout_rows = {shared_.dout_rows + query_at * g_.query_rows(g_.value_dim),
                                    elements<P>(g_.max_rows)};
      multiply<P, Into::kAdd, true>({s.dv + first * g_.padded_value_dim(), g_.padded_value_dim()},
                                    {s.weights + first, key_tile}, dout_rows, count, g_.value_dim, elements<P>(rows));
      multiply<P, Into::kAdd, true>({s.dk + first * g_.padded_dim(), g_.padded_dim()}, {s.dscores + first, key_tile},
                                    q_rows, count, g_.head_dim, elements<P>(rows));
    }
    if (p_.dq) {
      const Turns turns(shared_.query_turns);
      const MatrixB<P> k_rows = {
          shared_.k_rows + key_at * g_.key_rows(g_.head_dim) + int64_t(first / kPack) * kPanel<P>,
          elements<P>(key_tile)};
      turns.wait(query_at, p_.plan.ordinal_of_key_tile(query_tile, key_tile_index));
      multiply<P, Into::kAdd, false>({shared_.dq + query_at * g_.max_rows * g_.padded_dim(), g_.padded_dim()},
                                     {s.dscores_rows + first / kPack, elements<P>(key_tile)}, k_rows, rows, g_.head_dim,
                                     elements<P>(count));
      turns.next(query_at);
    }
  }

  // weights = exp2(scores - lse), dscores = weights * (dweights - delta), kPack rows at a time.
  template <bool kMasked>
  void differentiate_scores(BackwardScratch<P>& s, const TileMask<Acc, kGeneral>& mask, int tokens, Columns columns,
                            int64_t packed_row) {
    const int rows = tokens * g_.group, key_tile = g_.header.key_tile;
    const bool capped = kGeneral && p_.softcap != 0;
    for (int first = 0; first < rows; first += kPack) {
      for (int column = columns.begin; column < columns.end; column += kPanel<P>) {
        Vector<Acc> weights[2][kPack], dscores[2][kPack];
        for (int i = 0; i < kPack; ++i) {
          const int row = first + i;
          for (int half = 0; half < 2; ++half) {
            weights[half][i] = dscores[half][i] = Vector<Acc>{};
            if (row >= rows) continue;
            const int at = column + half * kWidth;
            const Vector<Acc> score = load(s.scores + int64_t(row) * key_tile + at);
            const Vector<Acc> dweight = load(s.dweights + int64_t(row) * key_tile + at);
            const Vector<Acc> bend = capped ? tanh<Acc>(score * scale_.over_cap) : Vector<Acc>{};
            const Vector<Acc> x = capped ? bend * scale_.cap_log2 : score * scale_.log2;
            Vector<Acc> weight = exp2<Acc>(x - shared_.lse_log2[packed_row + row]);
            Vector<Acc> dscore = weight * (dweight - shared_.delta[packed_row + row]);
            if (capped) dscore *= Acc(1) - bend * bend;
            if constexpr (kMasked) {
              const Mask<Acc> seen = mask.visible(row % tokens, at);
              weight = seen ? weight : Vector<Acc>{};
              dscore = seen ? dscore : Vector<Acc>{};
            }
            weights[half][i] = weight;
            dscores[half][i] = dscore;
          }
          if (kPack > 1 && row < rows)
            P::store_row(s.dscores_rows + (int64_t(row) * key_tile + column) / kPack, dscores[0][i], dscores[1][i]);
        }
        const int64_t at = int64_t(first / kPack) * key_tile + column;
        for (int half = 0; half < 2; ++half) {
          P::store_interleaved(s.weights + at + half * kWidth, weights[half]);
          P::store_interleaved(s.dscores + at + half * kWidth, dscores[half]);
        }
      }
    }
  }

  void add_key_rows(void* to, const Acc* from, int stride, int dim, int tile, int head, Acc factor) {
    for (int j = 0; j < g_.keys(tile); ++j) {
      const int64_t key = int64_t(tile) * g_.header.key_tile + j;
      Acc* row = static_cast<Acc*>(to) + (key * g_.kv_heads + head) * dim;
      for (int i = 0; i < dim; ++i) row[i] += from[int64_t(j) * stride + i] * factor;
    }
  }

  void add_dq(int tile, int head) {
    const int tokens = g_.query_tokens(tile);
    const Acc* from = shared_.dq + query_index(tile, head) * g_.max_rows * g_.padded_dim();
    for (int row = 0; row < tokens * g_.group; ++row, from += g_.padded_dim()) {
      const int64_t query = int64_t(tile) * g_.header.query_tile + row % tokens;
      Acc* to = static_cast<Acc*>(p_.dq) + (query * p_.query_heads + head * g_.group + row / tokens) * g_.head_dim;
      for (int i = 0; i < g_.head_dim; ++i) to[i] += from[i] * Acc(p_.scale);
    }
  }

  const AttentionBackwardParams& p_;
  Geometry<P> g_;
  ScoreScale<Acc> scale_;
  int num_workers_;
  BackwardShared<P> shared_ = {};
  char* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace

int64_t attention_backward_workspace(const AttentionBackwardParams& p, int num_workers) {
  return with_operands(p,
                       [&]<class P, bool kGeneral>() { return Backward<P, kGeneral>(p, num_workers).carve(nullptr); });
}

void attention_backward(const AttentionBackwardParams& p, const Executor& executor) {
  with_operands(p, [&]<class P, bool kGeneral>() { Backward<P, kGeneral>(p, executor.num_workers).run(executor); });
}

REGROW_END_ISA
