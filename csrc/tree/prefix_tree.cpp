#include "tree/prefix_tree.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "platform/check.h"

namespace regrow {
namespace {

void check_nodes(std::span<const int64_t> parent, std::span<const int64_t> lengths) {
  CHECK(parent.size() == lengths.size(), "parent has ", parent.size(), " nodes, lengths has ", lengths.size(),
        ": give one of each per node");
  const auto num_nodes = static_cast<int64_t>(parent.size());
  int64_t num_tokens = 0;
  for (int64_t node = 0; node < num_nodes; ++node) {
    CHECK(-1 <= parent[node] && parent[node] < num_nodes, "parent[", node, "] is ", parent[node],
          ", which is no node: use -1 for a root, or one of 0 to ", num_nodes - 1);
    CHECK(lengths[node] >= 1, "lengths[", node, "] is ", lengths[node],
          ": a node has at least one token; join an empty node with its parent");
    num_tokens = checked_axis_length(num_tokens, lengths[node]);
  }
}

// Children of all nodes, in input order; those of node n (-1: the roots) stand at [begin[n + 1], begin[n + 2]).
struct Children {
  std::vector<int64_t> begin;
  std::vector<int64_t> node;
};

Children children_of(std::span<const int64_t> parent) {
  const auto num_nodes = static_cast<int64_t>(parent.size());
  Children children{std::vector<int64_t>(num_nodes + 2), std::vector<int64_t>(num_nodes)};
  for (const int64_t p : parent) ++children.begin[p + 2];
  std::partial_sum(children.begin.begin(), children.begin.end(), children.begin.begin());
  std::vector<int64_t> next(children.begin.begin(), children.begin.end() - 1);
  for (int64_t node = 0; node < num_nodes; ++node) children.node[next[parent[node] + 1]++] = node;
  return children;
}

// Called when some node was not reached from any root.
[[noreturn]] void refuse_cycle(std::span<const int64_t> parent, std::span<const int64_t> node_of_input) {
  int64_t node = std::find(node_of_input.begin(), node_of_input.end(), -1) - node_of_input.begin();
  // As many steps as there are nodes lead from any unreached node into its cycle.
  for (size_t step = 0; step < parent.size(); ++step) node = parent[node];
  int64_t first = node, size = 1;
  for (int64_t other = parent[node]; other != node; other = parent[other], ++size) first = std::min(first, other);
  throw std::invalid_argument(message("node ", first, " is its own ancestor (parent[", first, "] is ", parent[first],
                                      ", a cycle of ", size, "): follow the parents to a root, whose parent is -1"));
}

}  // namespace

int64_t checked_axis_length(int64_t num_tokens, int64_t length) {
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  CHECK(length <= kMaxTokens - num_tokens, "the token axis would have more than ", kMaxTokens,
        " tokens (int32): split the sequences over several trees");
  return num_tokens + length;
}

Preorder number_preorder(std::span<const int64_t> parent, std::span<const int64_t> lengths) {
  check_nodes(parent, lengths);
  const auto num_nodes = static_cast<int64_t>(parent.size());
  const Children children = children_of(parent);

  Preorder order;
  order.node_of_input.assign(num_nodes, -1);
  order.input_of_node.reserve(num_nodes);
  std::vector<int64_t> pending;  // a stack of our own: a chain may be a million nodes deep
  const auto push_children = [&](int64_t node) {
    for (int64_t c = children.begin[node + 2]; c-- > children.begin[node + 1];) pending.push_back(children.node[c]);
  };
  push_children(-1);
  while (!pending.empty()) {
    const int64_t input = pending.back();
    pending.pop_back();
    order.node_of_input[input] = static_cast<int64_t>(order.input_of_node.size());
    order.input_of_node.push_back(input);
    push_children(input);
  }
  if (static_cast<int64_t>(order.input_of_node.size()) < num_nodes) refuse_cycle(parent, order.node_of_input);

  order.parent.resize(num_nodes);
  order.node_start.resize(num_nodes + 1);
  order.depth.resize(num_nodes);
  order.subtree_end.resize(num_nodes);
  for (int64_t node = 0; node < num_nodes; ++node) {
    const int64_t input = order.input_of_node[node];
    const int64_t above = parent[input] < 0 ? -1 : order.node_of_input[parent[input]];
    order.parent[node] = above;
    order.node_start[node + 1] = order.node_start[node] + lengths[input];
    order.depth[node] = above < 0 ? 0 : order.end_depth(above);
  }
  for (int64_t node = num_nodes; node-- > 0;) {  // children before parents
    int64_t& end = order.subtree_end[node];
    end = std::max(end, order.node_start[node + 1]);
    if (order.parent[node] >= 0) {
      int64_t& above = order.subtree_end[order.parent[node]];
      above = std::max(above, end);
    }
  }
  return order;
}

std::vector<int64_t> leaves_in_input_order(const Preorder& order) {
  std::vector<int64_t> leaves;
  for (const int64_t node : order.node_of_input) {
    if (order.subtree_end[node] == order.node_start[node + 1]) leaves.push_back(node);
  }
  return leaves;
}

void fill_token_arrays(const Preorder& order, int32_t* subtree_end, int64_t* position_ids, int64_t* parent_index) {
  for (int64_t node = 0; node < order.num_nodes(); ++node) {
    const int64_t begin = order.node_start[node], end = order.node_start[node + 1];
    // Every token of a node lies on the path of all later ones of it, so the subtree's end is theirs in common.
    std::fill(subtree_end + begin, subtree_end + end, static_cast<int32_t>(order.subtree_end[node]));
    std::iota(position_ids + begin, position_ids + end, order.depth[node]);
    std::iota(parent_index + begin, parent_index + end, begin - 1);
    parent_index[begin] = order.parent[node] < 0 ? -1 : order.node_start[order.parent[node] + 1] - 1;
  }
}

void fill_path(const Preorder& order, int64_t last, int64_t length, int64_t* gather_index) {
  for (int64_t node = last; node >= 0; node = order.parent[node]) {
    const int64_t depth = order.depth[node];
    std::iota(gather_index + depth, gather_index + length, order.node_start[node]);
    length = depth;
  }
}

}  // namespace regrow
