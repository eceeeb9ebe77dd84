#include "tree/trie.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "platform/check.h"
#include "tree/prefix_tree.h"

namespace regrow {
namespace {

constexpr int32_t kFree = -1;

// How many of the first `length` tokens agree. memcmp does the long shared parts.
int64_t common_length(const int64_t* a, const int64_t* b, int64_t length) {
  constexpr int64_t kBlock = 256;
  int64_t agree = 0;
  while (agree + kBlock <= length && std::memcmp(a + agree, b + agree, kBlock * sizeof(int64_t)) == 0) agree += kBlock;
  while (agree < length && a[agree] == b[agree]) ++agree;
  return agree;
}

// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): each bit of x moves about half of the result's.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Drawn once per process, so that nobody can choose tokens that fall on one place. The tree does not depend on it.
uint64_t seed() {
  static const uint64_t drawn = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return drawn;
}

// Each sequence adds at most two entries: its own end, and the lower half of the node that it splits.
int64_t max_table_entries(std::span<const int64_t> cu_seqlens) { return 2 * static_cast<int64_t>(cu_seqlens.size()); }

}  // namespace

ChildTable::ChildTable(int64_t max_entries) {
  const size_t capacity = std::bit_ceil(static_cast<size_t>(std::max<int64_t>(2 * max_entries, 16)));
  entries_.assign(capacity, Entry{0, 0, kFree});
}

size_t ChildTable::slot(int32_t group, int64_t token) const {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  const uint64_t hash = mix(mix(static_cast<uint64_t>(group) * kGolden + seed()) ^ static_cast<uint64_t>(token));
  const size_t mask = entries_.size() - 1;
  size_t place = hash & mask;
  while (entries_[place].node != kFree && (entries_[place].group != group || entries_[place].token != token)) {
    place = (place + 1) & mask;
  }
  return place;
}

int32_t ChildTable::find(int32_t group, int64_t token) const { return entries_[slot(group, token)].node; }

void ChildTable::insert(int32_t group, int64_t token, int32_t node) {
  entries_[slot(group, token)] = {token, group, node};
}

Trie::Trie(std::span<const int64_t> tokens, std::span<const int64_t> cu_seqlens)
    : tokens_(tokens), cu_seqlens_(cu_seqlens), table_(max_table_entries(cu_seqlens)) {
  CHECK(cu_seqlens.size() > 1,
        "there are no sequences: pass at least one, or make the empty tree by from_nodes([], [])");
  CHECK(cu_seqlens[0] == 0, "cu_seqlens starts at ", cu_seqlens[0],
        ", so sequence 0 misses tokens: it must start at 0");
  const auto num_sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
  const auto num_dense = static_cast<int64_t>(tokens.size());
  for (int64_t s = 0; s < num_sequences; ++s) {
    const int64_t begin = cu_seqlens[s], end = cu_seqlens[s + 1];
    CHECK(begin <= end, "cu_seqlens decreases from ", begin, " to ", end, " at sequence ", s,
          ": it must hold the running sum of the lengths");
    CHECK(begin != end, "sequence ", s, " is empty: leave it out, or give it a first token (BOS, say)");
  }
  CHECK(cu_seqlens[num_sequences] == num_dense, "cu_seqlens ends at ", cu_seqlens[num_sequences], " (sequence ",
        num_sequences - 1, "), but there are ", num_dense, " tokens: it must end at their number");
  nodes_.reserve(2 * num_sequences);
  owner_.reserve(num_sequences + 1);
  add_group(-1);
  for (int64_t s = 0; s < num_sequences; ++s) insert(s);
}

void Trie::insert(int64_t index) {
  const int64_t end = cu_seqlens_[index + 1];
  int64_t begin = cu_seqlens_[index];
  int32_t group = 0;
  while (true) {
    const int32_t child = table_.find(group, tokens_[begin]);
    if (child < 0) {
      check_new_tokens(index, begin, end - begin);
      return add_leaf(group, begin, end - begin);
    }
    const int64_t length = nodes_[child].length;
    const int64_t agree = common_length(&tokens_[nodes_[child].begin], &tokens_[begin], std::min(length, end - begin));
    if (begin + agree == end) return;
    if (agree < length) {
      split(child, agree);
    } else if (nodes_[child].children < 0) {
      // A longer copy of a leaf replaces it: an only child would make the nodes depend on the order of insertion.
      check_new_tokens(index, begin + agree, end - begin - agree);
      nodes_[child].begin = begin;
      nodes_[child].length = end - begin;
      return;
    }
    begin += agree;
    group = nodes_[child].children;
  }
}

void Trie::add_leaf(int32_t group, int64_t begin, int64_t length) {
  table_.insert(group, tokens_[begin], static_cast<int32_t>(nodes_.size()));
  nodes_.push_back({begin, length, group, -1});
}

// The node keeps its index, and so its place among its siblings, and its first `length` tokens.
void Trie::split(int32_t node, int64_t length) {
  const auto lower = static_cast<int32_t>(nodes_.size());
  const int32_t group = add_group(node);
  const int32_t grandchildren = nodes_[node].children;
  add_leaf(group, nodes_[node].begin + length, nodes_[node].length - length);
  nodes_[lower].children = grandchildren;
  if (grandchildren >= 0) owner_[grandchildren] = lower;
  nodes_[node].length = length;
  nodes_[node].children = group;
}

int32_t Trie::add_group(int32_t owner) {
  owner_.push_back(owner);
  return static_cast<int32_t>(owner_.size()) - 1;
}

// Tokens equal to earlier ones were checked with those.
void Trie::check_new_tokens(int64_t index, int64_t begin, int64_t length) {
  int64_t signs = 0;
  for (int64_t t = begin; t < begin + length; ++t) signs |= tokens_[t];
  if (signs < 0) {
    const auto bad = std::find_if(&tokens_[begin], &tokens_[begin] + length, [](int64_t token) { return token < 0; });
    const int64_t position = bad - &tokens_[cu_seqlens_[index]];
    CHECK(false, "sequence ", index, " has the negative token ", *bad, " at position ", position,
          ": cut padding and label masks off first");
  }
  num_tokens_ = checked_axis_length(num_tokens_, length);
}

int64_t Trie::last_node(int64_t index) const {
  const int64_t end = cu_seqlens_[index + 1];
  int64_t begin = cu_seqlens_[index];
  int32_t node = table_.find(0, tokens_[begin]);
  while (begin + nodes_[node].length < end) {
    begin += nodes_[node].length;
    node = table_.find(nodes_[node].children, tokens_[begin]);
  }
  return node;
}

}  // namespace regrow
