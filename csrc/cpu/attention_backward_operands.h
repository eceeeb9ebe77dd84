#pragma once

// Where the backward keeps its operands and sums: one of each for a call, and one for each worker.

#include "cpu/arena.h"
#include "cpu/attention_tile.h"

REGROW_BEGIN_ISA

// Operands of the whole call, packed once; every key tile reads many query tiles.
template <class P>
struct BackwardShared {
  using Acc = typename P::Acc;
  using Element = typename P::Element;
  Element *k_columns, *v_columns;    // [kv_heads, key tiles] operand B, a column a key
  Element* k_rows;                   // [kv_heads, key tiles] operand B, a row a key
  Element *q, *dout;                 // [kv_heads, query tiles, max_rows] operand A
  Element *q_rows, *dout_rows;       // [kv_heads, query tiles] operand B, a row a query
  Acc* lse_log2;                     // [kv_heads, query tiles, max_rows]; +inf for a row that sees nothing
  Acc* delta;                        // the same: rowsum(dout * out) - dlse
  Acc* dq;                           // [kv_heads, query tiles, max_rows, padded head_dim], unscaled
  Acc* dsinks;                       // [query tiles, query_heads]
  int32_t *query_turns, *key_turns;  // [kv_heads, tiles]
  KeyMasks<Acc> masks;

  void carve(Arena& arena, const Geometry<P>& g) {
    const int64_t key_tiles = int64_t(g.kv_heads) * g.header.num_key_tiles;
    const int64_t query_tiles = int64_t(g.kv_heads) * g.header.num_query_tiles;
    k_columns = arena.take<Element>(key_tiles * g.key_columns(g.head_dim));
    v_columns = arena.take<Element>(key_tiles * g.key_columns(g.value_dim));
    k_rows = arena.take<Element>(key_tiles * g.key_rows(g.head_dim));
    q = arena.take<Element>(query_tiles * g.max_rows * elements<P>(g.head_dim));
    dout = arena.take<Element>(query_tiles * g.max_rows * elements<P>(g.value_dim));
    q_rows = arena.take<Element>(query_tiles * g.query_rows(g.head_dim));
    dout_rows = arena.take<Element>(query_tiles * g.query_rows(g.value_dim));
    lse_log2 = arena.take<Acc>(query_tiles * g.max_rows);
    delta = arena.take<Acc>(query_tiles * g.max_rows);
    dq = arena.take<Acc>(query_tiles * g.max_rows * g.padded_dim());
    dsinks = arena.take<Acc>(query_tiles * g.group);
    query_turns = arena.take<int32_t>(query_tiles);
    key_turns = arena.take<int32_t>(key_tiles);
    masks.carve(arena, g.header);
  }
};

// What one worker needs for one key tile.
template <class P>
struct BackwardScratch {
  using Acc = typename P::Acc;
  using Element = typename P::Element;
  QueryPositions<Acc> queries;
  Acc *scores, *dweights;  // [max_rows, key_tile]: Q K^T, dO V^T
  // Transposed operands A [max_rows / kPack, key_tile]; dscores_rows: [max_rows, key_tile], the same memory if kPack
  // = 1.
  Element *weights, *dscores, *dscores_rows;
  Acc *dk, *dv;  // [key_tile, padded dim]

  void carve(Arena& arena, const Geometry<P>& g) {
    const int64_t rows = g.max_rows + P::kPack, keys = g.header.key_tile;
    queries.carve(arena, g.header);
    scores = arena.take<Acc>(rows * keys);
    dweights = arena.take<Acc>(rows * keys);
    weights = arena.take<Element>(rows * keys);
    dscores = arena.take<Element>(rows * keys);
    dscores_rows = P::kPack == 1 ? dscores : arena.take<Element>(rows * elements<P>(int(keys)));
    dk = arena.take<Acc>(keys * g.padded_dim());
    dv = arena.take<Acc>(keys * g.padded_value_dim());
  }
};

REGROW_END_ISA
