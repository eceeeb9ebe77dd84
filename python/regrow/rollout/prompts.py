"""The prompts of a rollout as a trie: what they share, and who asks for how many sequences. Integers only."""

from collections import Counter
from dataclasses import dataclass, field

from regrow.tree import PrefixTree


@dataclass
class Node:
    """A run of prompt tokens that the same prompts share; a prompt's own node, without tokens at will, is a leaf."""

    parent: int  # -1 at roots
    tokens: list[int]
    depth: int  # position id of its first token
    prompt: int = -1  # of a leaf
    children: list[int] = field(default_factory=list)


class Prompts:
    """Equal prompts are one; each has a leaf of the trie below what it shares with others.

    unique: the different prompts in the order of the trie; counts: how many sequences each has; of_sequence: for each
    sequence, prompt-major, its prompt. nodes: in preorder; paths: for each prompt its nodes from the root on.

    >>> prompts = Prompts([[5, 6], [5, 7, 8]], group=2)
    >>> [node.tokens for node in prompts.nodes], prompts.paths, prompts.of_sequence
    ([[5], [6], [7, 8]], [[0, 1], [0, 2]], [0, 0, 1, 1])
    """

    def __init__(self, prompts, group=1):
        rows = [tuple(prompt) for prompt in prompts]
        unique = list(dict.fromkeys(rows))
        blank = 1 + max(map(max, unique))  # tokens that no prompt has: each prompt then ends in a leaf of its own
        tree = PrefixTree.from_sequences([[*prompt, blank + i] for i, prompt in enumerate(unique)])
        starts = tree.node_start.tolist()
        tokens, depths = tree.tokens.tolist(), tree.position_ids.tolist()
        self.nodes, leaves = [], {}
        for node, parent in enumerate(tree.parent.tolist()):
            begin, end = starts[node], starts[node + 1]
            self.nodes.append(Node(parent, tokens[begin:end], depths[begin]))
            if parent >= 0:
                self.nodes[parent].children.append(node)
            if tokens[end - 1] >= blank:
                leaves[tokens[end - 1] - blank] = node
                self.nodes[node].tokens.pop()
        order = sorted(leaves, key=leaves.get)
        self.unique = [list(unique[index]) for index in order]
        number = {unique[index]: prompt for prompt, index in enumerate(order)}
        self.of_sequence = [number[row] for row in rows for _ in range(group)]
        counts = Counter(self.of_sequence)
        self.counts = [counts[prompt] for prompt in range(len(order))]
        self.paths = []
        for prompt, index in enumerate(order):
            self.nodes[leaves[index]].prompt = prompt
            self.paths.append(self._path(leaves[index]))

    def _path(self, node):
        path = []
        while node >= 0:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    @property
    def num_sequences(self):
        return len(self.of_sequence)

    @property
    def num_tokens(self):
        """Of all nodes: what is computed once."""
        return sum(len(node.tokens) for node in self.nodes)

    @property
    def longest(self):
        return max(map(len, self.unique))
