"""Where tokens lie on a rollout's axis: shared beginnings of prompts, and a slice for each sequence. Integers only.

A node's interval holds its tokens and then those of its children; a leaf's holds its tokens and then slices of
`slice_tokens`, one for each sequence that may run at once. A free slice goes to a sibling; another prompt takes a
leaf's place once all of its interval is free.
"""

from heapq import heappop, heappush
from itertools import accumulate

_SPARE = 2  # places for so many times the prompts that fill a batch, so that a straggler keeps nobody waiting


class Layout:
    """Intervals of one axis of `capacity` positions.

    capacity: of a leaf, tokens + min(count, max_live) * slice_tokens; of an inner node, tokens + the sum over its
    children, or places * the largest of them if that is less; of the axis, as an inner node without tokens. places =
    2 ceil(max_live / the smallest count), all children if max_live is the number of sequences.
    """

    def __init__(self, prompts, slice_tokens, max_live):
        self.nodes, self.slice_tokens = prompts.nodes, slice_tokens
        self.slices = [min(count, max_live) for count in prompts.counts]
        self.paths = prompts.paths
        everybody = max_live >= prompts.num_sequences
        self.limit = len(self.nodes) if everybody else _SPARE * -(-max_live // min(prompts.counts))
        self.size = [0] * len(self.nodes)
        self.place_of = {}  # node -> its place, of nodes that have one of their own
        self.offsets = {}  # inner node, -1 for the axis -> where its places begin, from the first one on
        self.free_places = {}  # inner node with fewer places than children -> the free ones
        for node in reversed(range(len(self.nodes))):
            self.size[node] = len(self.nodes[node].tokens) + self._size_below(node)
        self.capacity = self._below(-1, [i for i, node in enumerate(self.nodes) if node.parent < 0])

        self.begin = [-1] * len(self.nodes)  # of those that have a place
        self.place = [-1] * len(self.nodes)
        self.free_slices = {}  # prompt that has a place -> where its free slices begin
        self.waiting = [0] * len(self.nodes)  # prompts below that have had no place yet
        self.placed = [0] * len(self.nodes)  # children that have one
        for path in self.paths:
            for node in path:
                self.waiting[node] += 1

    def _size_below(self, node):
        prompt = self.nodes[node].prompt
        return self.slices[prompt] * self.slice_tokens if prompt >= 0 else self._below(node, self.nodes[node].children)

    def _below(self, node, children):
        sizes = [self.size[child] for child in children]
        if self.limit * max(sizes) < sum(sizes):
            sizes = [max(sizes)] * self.limit
            self.free_places[node] = list(range(self.limit))
        else:
            self.place_of.update({child: place for place, child in enumerate(children)})
        self.offsets[node] = list(accumulate(sizes, initial=0))
        return sum(sizes)

    def admit(self, prompt):
        """Gives the prompt its place, and the nodes above it that have none: those nodes, from the top. None: no room.

        Prompts come in order, so those that share a node which is on the axis come before others.
        """
        path = self.paths[prompt]
        new = [node for node in path if self.begin[node] < 0]
        if not self.free_places.get(self.nodes[new[0]].parent, True):
            return None
        for node in new:
            parent = self.nodes[node].parent
            place = heappop(self.free_places[parent]) if parent in self.free_places else self.place_of[node]
            above = 0 if parent < 0 else self.begin[parent] + len(self.nodes[parent].tokens)
            self.place[node], self.begin[node] = place, above + self.offsets[parent][place]
            if parent >= 0:
                self.placed[parent] += 1
        for node in path:
            self.waiting[node] -= 1
        first = self.begin[path[-1]] + len(self.nodes[path[-1]].tokens)
        self.free_slices[prompt] = [first + i * self.slice_tokens for i in range(self.slices[prompt])]
        return new

    def end(self, node):
        return self.begin[node] + self.size[node]

    def take_slice(self, prompt):
        """Where the slice begins; there must be one."""
        return heappop(self.free_slices[prompt])

    def give_slice(self, prompt, begin):
        heappush(self.free_slices[prompt], begin)

    def release(self, prompt):
        """The prompt's sequences have all ended: frees its place, and those above that nobody needs any more."""
        del self.free_slices[prompt]
        for node in reversed(self.paths[prompt]):
            if self.waiting[node] or self.placed[node]:
                return
            parent = self.nodes[node].parent
            if parent in self.free_places:
                heappush(self.free_places[parent], self.place[node])
            self.begin[node] = self.place[node] = -1
            if parent >= 0:
                self.placed[parent] -= 1
