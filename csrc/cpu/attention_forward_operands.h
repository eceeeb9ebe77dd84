#pragma once

// What the forward keeps: packed keys, per worker what one query tile needs, and the pieces of split query tiles.

#include <algorithm>

#include "cpu/attention_tile.h"

REGROW_BEGIN_ISA

// Keys and values of some tiles as operands B: a column a key, and a row a key.
template <class P>
struct PackedKeys {
  typename P::Element *k, *v;

  void carve(Arena& arena, const Geometry<P>& g, int64_t tiles) {
    k = arena.take<typename P::Element>(tiles * g.key_columns(g.head_dim));
    v = arena.take<typename P::Element>(tiles * g.key_rows(g.value_dim));
  }
  PackedKeys at(const Geometry<P>& g, int64_t tile) const {
    return {k + tile * g.key_columns(g.head_dim), v + tile * g.key_rows(g.value_dim)};
  }
};

// A key tile that one query tile alone reads is packed where it is read, and stays in the cache.
template <class P>
bool packs_on_use(const Geometry<P>& g) {
  return g.header.num_query_tiles <= 1;
}

// Packed keys and values of the whole call, and the pieces of split query tiles.
template <class P>
struct Shared {
  using Acc = typename P::Acc;
  PackedKeys<P> keys;  // [kv_heads, key tiles], none if they are packed on use
  KeyMasks<Acc> masks;
  IntOf<Acc>* seen_until;  // [key tiles] the largest subtree_end of keys that a query sees, 0 if there is none
  Acc* slot_out;           // [slots, kv_heads, max_rows, value_dim]
  Acc* slot_lse;           // [slots, kv_heads, max_rows] natural log

  void carve(Arena& arena, const Geometry<P>& g) {
    keys.carve(arena, g, packs_on_use(g) ? 0 : int64_t(g.kv_heads) * g.header.num_key_tiles);
    masks.carve(arena, g.header);
    seen_until = arena.take<IntOf<Acc>>(g.header.num_key_tiles);
    const int64_t slot_rows = int64_t(g.header.num_slots) * g.kv_heads * g.max_rows;
    slot_out = arena.take<Acc>(slot_rows * g.value_dim);
    slot_lse = arena.take<Acc>(slot_rows);
  }

  void fill(const Rectangle& r, PlanView plan) const {
    masks.fill(r, plan);
    const PlanHeader& h = plan.header();
    std::fill(seen_until, seen_until + h.num_key_tiles, 0);
    for (int64_t j = 0; j < int64_t(h.num_key_tiles) * h.key_tile; ++j)
      if (!masks.unseen || !masks.unseen[j])
        seen_until[j / h.key_tile] = std::max(seen_until[j / h.key_tile], masks.end[j]);
  }
};

// The tokens of a query tile that may see a key tile: neighbours, as those that see one key are.
struct Tokens {
  int begin, end;
  int count() const { return end - begin; }
};

// What one worker needs for one query tile.
template <class P>
struct Scratch {
  using Acc = typename P::Acc;
  static constexpr int kWidth = kLanes<Acc>;

  QueryPositions<Acc> queries;
  PackedKeys<P> keys;            // of one tile, if they are packed on use
  typename P::Element* q;        // [max_rows] operand A
  Acc* scores;                   // [max_rows, key_tile]
  typename P::Element* weights;  // [max_rows, key_tile] operand A
  Acc* out;                      // [max_rows, padded value_dim]
  Acc* maximum;                  // [max_rows] of the scores so far, log2
  Acc* factor;                   // [max_rows] for what came before the maximum changed
  Acc* sum;                      // [max_rows, kWidth] of the weights so far, lane by lane

  void carve(Arena& arena, const Geometry<P>& g) {
    const int64_t rows = g.max_rows + kWidth;  // factors are computed a vector at a time
    queries.carve(arena, g.header);
    keys.carve(arena, g, packs_on_use(g) ? 1 : 0);
    q = arena.take<typename P::Element>(rows * elements<P>(g.head_dim));
    scores = arena.take<Acc>(rows * g.header.key_tile);
    weights = arena.take<typename P::Element>(rows * elements<P>(g.header.key_tile));
    out = arena.take<Acc>(rows * g.padded_value_dim());
    maximum = arena.take<Acc>(rows);
    factor = arena.take<Acc>(rows);
    sum = arena.take<Acc>(rows * kWidth);
  }
};

REGROW_END_ISA
