#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace regrow {

// num_tokens + length, which must stay on the int32 token axis.
int64_t checked_axis_length(int64_t num_tokens, int64_t length);

// Nodes in depth-first preorder, siblings in the order in which they were given.
struct Preorder {
  std::vector<int64_t> node_of_input;  // [num_nodes] where the caller's node went
  std::vector<int64_t> input_of_node;  // [num_nodes] its inverse
  std::vector<int64_t> parent;         // [num_nodes] -1 at roots
  std::vector<int64_t> node_start;     // [num_nodes + 1] axis position of its first token
  std::vector<int64_t> subtree_end;    // [num_nodes] one past the last axis position of its subtree
  std::vector<int64_t> depth;          // [num_nodes] position_id of its first token

  int64_t num_nodes() const { return static_cast<int64_t>(parent.size()); }
  int64_t num_tokens() const { return node_start.back(); }
  int64_t end_depth(int64_t node) const { return depth[node] + node_start[node + 1] - node_start[node]; }
};

// Nodes in any order: a parent may come after its child. A cycle, an unknown parent and a length below 1 are refused.
Preorder number_preorder(std::span<const int64_t> parent, std::span<const int64_t> lengths);

// The leaves in the caller's order, as preorder nodes.
std::vector<int64_t> leaves_in_input_order(const Preorder& order);

// Per-token arrays, each [num_tokens].
void fill_token_arrays(const Preorder& order, int32_t* subtree_end, int64_t* position_ids, int64_t* parent_index);

// Axis positions of one sequence: the first `length` tokens on the path to the end of preorder node `last`.
void fill_path(const Preorder& order, int64_t last, int64_t length, int64_t* gather_index);

}  // namespace regrow
