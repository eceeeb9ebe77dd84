#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace regrow {

// Node of (sibling group, first token), open addressing. A group is the set of children of one node; group 0 holds the
// roots. One table for the whole trie, so a node with 100,000 children costs what 100,000 nodes with one child do.
class ChildTable {
 public:
  explicit ChildTable(int64_t max_entries);
  int32_t find(int32_t group, int64_t token) const;  // -1: none
  void insert(int32_t group, int64_t token, int32_t node);

 private:
  struct Entry {
    int64_t token;
    int32_t group;
    int32_t node;
  };
  size_t slot(int32_t group, int64_t token) const;  // of the entry, or of the free place where it belongs

  std::vector<Entry> entries_;  // a power of two
};

// A radix trie: no node has exactly one child, whatever the order of insertion. A sequence may end inside a node.
// Sequence s is tokens[cu_seqlens[s] : cu_seqlens[s + 1]]; the tokens must outlive the trie, which only points at them.
class Trie {
 public:
  Trie(std::span<const int64_t> tokens, std::span<const int64_t> cu_seqlens);

  int64_t num_nodes() const { return static_cast<int64_t>(nodes_.size()); }
  // Siblings stand in order of first appearance by index; a parent may have a higher index than its child.
  int64_t parent(int64_t node) const { return owner_[nodes_[node].siblings]; }
  int64_t length(int64_t node) const { return nodes_[node].length; }
  std::span<const int64_t> tokens(int64_t node) const { return tokens_.subspan(nodes_[node].begin, length(node)); }
  int64_t last_node(int64_t sequence) const;  // the node in which the sequence ends

 private:
  struct Node {
    int64_t begin;  // where in tokens_ one copy of its tokens stands
    int64_t length;
    int32_t siblings;  // the group it is in
    int32_t children;  // the group it owns, -1 at a leaf
  };
  void insert(int64_t index);
  void add_leaf(int32_t group, int64_t begin, int64_t length);
  void split(int32_t node, int64_t length);
  int32_t add_group(int32_t owner);
  void check_new_tokens(int64_t index, int64_t begin, int64_t length);

  std::span<const int64_t> tokens_;
  std::span<const int64_t> cu_seqlens_;
  std::vector<Node> nodes_;
  // Children know their group and the group knows its node, so a split hands all children over by one store.
  std::vector<int32_t> owner_;
  ChildTable table_;
  int64_t num_tokens_ = 0;
};

}  // namespace regrow
