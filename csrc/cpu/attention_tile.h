#pragma once

// What forward and backward share: the sizes of a tile, its mask, and the weights of its scores.

#include <algorithm>

#include "cpu/arena.h"
#include "cpu/exponential.h"
#include "cpu/operand.h"
#include "cpu/pack.h"
#include "kernels/attention_params.h"

REGROW_BEGIN_ISA

// Calls f.template operator()<P, kGeneral>() for the operands of q's dtype; general: softcap or a window.
template <class F>
inline auto with_operands(const AttentionParams& p, const F& f) {
  const bool general = p.softcap != 0 || p.rectangle.window != 0;
  switch (p.q.dtype) {
    case DType::kFloat64:
      return general ? f.template operator()<Fp64, true>() : f.template operator()<Fp64, false>();
    case DType::kBFloat16:
      return general ? f.template operator()<Bf16Operand, true>() : f.template operator()<Bf16Operand, false>();
    default:
      return general ? f.template operator()<Fp32, true>() : f.template operator()<Fp32, false>();
  }
}

template <class P>
struct Geometry {
  using Acc = typename P::Acc;

  explicit Geometry(const AttentionParams& p)
      : header(p.plan.header()),
        group(p.kv_heads ? p.query_heads / p.kv_heads : 1),
        kv_heads(p.kv_heads),
        head_dim(p.head_dim),
        value_dim(p.value_dim),
        max_rows(group * header.query_tile) {}

  int query_tokens(int tile) const {
    return int(std::min<int64_t>(header.query_tile, header.num_queries - int64_t(tile) * header.query_tile));
  }
  int keys(int tile) const {
    return int(std::min<int64_t>(header.key_tile, header.num_keys - int64_t(tile) * header.key_tile));
  }
  // Elements of one tile of keys or queries as an operand.
  int64_t key_columns(int dim) const { return int64_t(panels<P>(header.key_tile)) * elements<P>(dim) * kPanel<P>; }
  int64_t key_rows(int dim) const { return int64_t(panels<P>(dim)) * elements<P>(header.key_tile) * kPanel<P>; }
  int64_t query_rows(int dim) const { return int64_t(panels<P>(dim)) * elements<P>(max_rows) * kPanel<P>; }
  int padded_dim() const { return panels<P>(head_dim) * kPanel<P>; }
  int padded_value_dim() const { return panels<P>(value_dim) * kPanel<P>; }

  const PlanHeader& header;
  int group, kv_heads, head_dim, value_dim;
  int max_rows;  // of a query tile: tokens times heads of the group
};

// Per key, what the mask needs, in lanes as wide as a score. Keys are rounded up to whole tiles.
template <class Acc>
struct KeyMasks {
  IntOf<Acc>* end;    // [key tiles * key_tile] subtree_end, 0 for padding
  IntOf<Acc>* depth;  // [key tiles * key_tile]
  uint8_t* unseen;    // [key tiles * key_tile] or null

  void carve(Arena& arena, const PlanHeader& h) {
    const int64_t count = int64_t(h.num_key_tiles) * h.key_tile;
    end = arena.take<IntOf<Acc>>(count);
    depth = arena.take<IntOf<Acc>>(count);
    unseen = h.num_unseen ? arena.take<uint8_t>(count) : nullptr;
  }

  void fill(const Rectangle& r, PlanView plan) const {
    const PlanHeader& h = plan.header();
    const int64_t count = int64_t(h.num_key_tiles) * h.key_tile;
    for (int64_t j = 0; j < count; ++j) {
      end[j] = j < r.num_keys ? IntOf<Acc>(r.subtree_end[r.key_start + j]) : 0;
      depth[j] = j < r.num_keys ? IntOf<Acc>(r.position_ids[r.key_start + j]) : 0;
    }
    if (!unseen) return;
    for (int64_t j = 0; j < count; ++j) unseen[j] = !plan.sees_key(j);
  }
};

// Queries of one tile against keys of one tile: who sees whom.
template <class Acc, bool kGeneral>
struct TileMask {
  using Int = IntOf<Acc>;

  // Lanes: keys [column, column + lanes) of the tile.
  Mask<Acc> visible(int token, int column) const {
    const Vector<Int> key = iota<Int>() + Int(first_key_position + column);
    Mask<Acc> seen = (key <= query_position[token]) & (load(key_end + column) > query_position[token]);
    if constexpr (kGeneral) {
      if (window) seen &= query_depth[token] - load(key_depth + column) < Int(window);
    }
    return seen;
  }

  const Int* query_position;  // [tokens]
  const Int* query_depth;     // [tokens]
  const Int* key_end;         // [key_tile]
  const Int* key_depth;       // [key_tile]
  int64_t first_key_position;
  int64_t window;
};

// Positions and depths of a query tile.
template <class Acc>
struct QueryPositions {
  IntOf<Acc>*position, *depth;  // [query_tile]

  void carve(Arena& arena, const PlanHeader& h) {
    position = arena.take<IntOf<Acc>>(h.query_tile);
    depth = arena.take<IntOf<Acc>>(h.query_tile);
  }
  void fill(const Rectangle& r, int64_t first_query, int num_tokens) const {
    for (int i = 0; i < num_tokens; ++i) {
      position[i] = IntOf<Acc>(r.query_position(first_query + i));
      depth[i] = IntOf<Acc>(r.position_ids[position[i]]);
    }
  }
};

// Whole panels of a tile's columns.
struct Columns {
  int begin, end;
  int count() const { return end - begin; }
};

// The columns of a tile that some query may see: none lies after the last query, none ended before the first.
template <class P>
inline Columns visible_columns(int keys, bool partial, int64_t first_key_position,
                               const IntOf<typename P::Acc>* key_end, int64_t first_query_position,
                               int64_t last_query_position) {
  int begin = 0, end = keys;
  if (partial) {
    end = int(std::min<int64_t>(keys, last_query_position - first_key_position + 1));
    while (begin < end && key_end[begin] <= first_query_position) ++begin;
  }
  return {begin / kPanel<P> * kPanel<P>, (end + kPanel<P> - 1) / kPanel<P> * kPanel<P>};
}

// A score in units of log2: what exp2 is taken of. Softcap: tanh(score * scale / cap) * cap.
template <class Acc>
struct ScoreScale {
  explicit ScoreScale(const AttentionParams& p)
      : log2(Acc(p.scale * kLog2E)),
        over_cap(Acc(p.softcap ? p.scale / p.softcap : 0)),
        cap_log2(Acc(p.softcap * kLog2E)) {}

  Acc log2;
  Acc over_cap, cap_log2;
};

REGROW_END_ISA
