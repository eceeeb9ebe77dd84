"""Random trees for hypothesis, as plain lists: nodes in preorder, and what the token axis says of them."""

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Arrays:
    """node_start [nodes + 1], parent [nodes]; position_ids, subtree_end, parent_index [T]."""

    node_start: list
    parent: list
    position_ids: list
    subtree_end: list
    parent_index: list

    @classmethod
    def of(cls, parent, lengths):
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        stops = [starts[node + 1] for node in range(len(parent))]
        for node in reversed(range(len(parent))):
            if parent[node] >= 0:
                stops[parent[node]] = max(stops[parent[node]], stops[node])
        positions, ends, above = [], [], []
        for node, up in enumerate(parent):
            before = -1 if up < 0 else starts[up + 1] - 1
            for token in range(starts[node], starts[node + 1]):
                above.append(before)
                positions.append(0 if before < 0 else positions[before] + 1)
                ends.append(stops[node])
                before = token
        return cls(starts, list(parent), positions, ends, above)

    @property
    def num_tokens(self):
        return self.node_start[-1]

    def path(self, token):
        """The tokens above it, root first."""
        path = []
        while (token := self.parent_index[token]) >= 0:
            path.append(token)
        return path[::-1]

    def below(self, token):
        return range(token + 1, self.subtree_end[token])


@st.composite
def preorder_nodes(draw, max_nodes=30, max_length=12):
    """(parent, lengths): a node hangs from any of the path of the node before it, or is a root."""
    count = draw(st.integers(1, max_nodes))
    parent, path = [], [-1]
    for node in range(count):
        del path[draw(st.integers(1, len(path))) :]
        parent.append(path[-1])
        path.append(node)
    return parent, draw(st.lists(st.integers(1, max_length), min_size=count, max_size=count))
