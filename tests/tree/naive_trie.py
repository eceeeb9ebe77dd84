"""The oracle: a trie of nested dicts with one token per entry, and every array of the axis read off it."""


class NaiveTree:
    """Tokens in preorder; `children_of_root` maps a key to (token, children), in order of first appearance."""

    def __init__(self, children_of_root):
        self.tokens, self.parent_index, self.paths, self.subtree_end, self.place = [], [], [], [], {}
        self._number(children_of_root, ())
        self.position_ids = [len(path) - 1 for path in self.paths]

    def _number(self, children, path):
        for token, below in children.values():
            here = len(self.tokens)
            self.tokens.append(token)
            self.parent_index.append(path[-1] if path else -1)
            self.paths.append({*path, here})
            self.subtree_end.append(None)
            self.place[id(below)] = here
            self._number(below, (*path, here))
            self.subtree_end[here] = len(self.tokens)

    @classmethod
    def from_sequences(cls, sequences):
        root = {}
        ends = []
        for sequence in sequences:
            children = root
            for token in sequence:
                children = children.setdefault(token, (token, {}))[1]
            ends.append(children)
        tree = cls(root)
        tree.gather_index = [position for end in ends for position in sorted(tree.paths[tree.place[id(end)]])]
        return tree

    @classmethod
    def from_nodes(cls, parent, lengths, tokens):
        """Nodes as chains of entries, hung below the last entry of their parent, in the caller's order."""
        begin = [sum(lengths[:node]) for node in range(len(lengths))]
        root = {}
        chains = []
        for node, length in enumerate(lengths):
            last = {}
            first = last
            for token in reversed(tokens[begin[node] : begin[node] + length]):
                first = {node: (token, first)}
            chains.append((first, last))
        for node, (first, _) in enumerate(chains):
            (root if parent[node] < 0 else chains[parent[node]][1]).update(first)
        tree = cls(root)
        leaves = [last for _, last in chains if not last]
        tree.gather_index = [position for leaf in leaves for position in sorted(tree.paths[tree.place[id(leaf)]])]
        tree.node_of_input_start = [tree.place[id(last)] - lengths[node] + 1 for node, (_, last) in enumerate(chains)]
        return tree

    def radix_nodes(self):
        """Axis positions at which a radix trie's nodes begin: roots, and children of tokens with several children."""
        num_children = [self.parent_index.count(token) for token in range(len(self.tokens))]
        return [t for t, above in enumerate(self.parent_index) if above < 0 or num_children[above] > 1]
