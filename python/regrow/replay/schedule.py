"""Which pieces of a tree run when: integers only, no tensors (docs/replay.md, the schedule).

A segment is an interval of the token axis that hangs from one path. Segments form a tree and are listed in preorder: an
inner segment is a piece of one node, a leaf segment is anything small enough to run at once. A values pass visits them
in this order; a gradient pass in the reverse, which is a postorder: children before the segment that they hang from.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Segment:
    """The tokens `begin` to `end` of the axis, all below the same `depth` tokens of path.

    parent: place in the list of the segment that holds the token before, -1 at roots; inner: whether segments hang from
    this one, which then is a piece of one path.
    """

    begin: int
    end: int
    depth: int
    parent: int
    inner: bool

    @property
    def size(self):
        return self.end - self.begin


def cut(node_start, node_parent, position_ids, subtree_end, chunk_tokens):
    """The segments of a tree, of at most `chunk_tokens` tokens each, in preorder.

    node_start [num_nodes + 1], node_parent [num_nodes]: preorder nodes as `PrefixTree` has them; position_ids and
    subtree_end [T] (arrays of integers). A node whose subtree fits in a chunk shares a leaf segment with its
    neighbours; one whose subtree does not gives its last tokens to a leaf segment if all that is below fits beside
    them, for what lies in leaf segments runs once; what is left is cut into inner segments of even size.

    >>> prompt, two, responses = [10] * 6, [6, 7], [8, 8, 10, 10]
    >>> segments = cut([0, 6, 8, 10], [-1, 0, 0], [*range(6), *two, *two], [*prompt, *responses], chunk_tokens=6)
    >>> [(s.begin, s.end, s.inner) for s in segments]
    [(0, 4, True), (4, 10, False)]
    """
    segments = []
    starts, parents = np.asarray(node_start).tolist(), np.asarray(node_parent).tolist()
    above = {-1: -1}  # the segment from which the children of a node hang
    open_parent = None  # of the last segment, where it is a leaf that can take more siblings
    node = 0
    while node < len(parents):
        begin, end = starts[node], starts[node + 1]
        stop, depth = int(subtree_end[begin]), int(position_ids[begin])
        below, parent = stop - end, above[parents[node]]
        if stop - begin <= chunk_tokens:
            last = segments[-1] if segments else None
            if open_parent == parents[node] and last.end == begin and stop - last.begin <= chunk_tokens:
                segments[-1] = Segment(last.begin, stop, last.depth, last.parent, False)
            else:
                segments.append(Segment(begin, stop, depth, parent, False))
            open_parent = parents[node]
        else:
            tail = min(end - begin, chunk_tokens - below) if below < chunk_tokens else 0
            for piece_begin, piece_end in even_pieces(begin, end - tail, chunk_tokens):
                segments.append(Segment(piece_begin, piece_end, depth + piece_begin - begin, parent, True))
                parent = len(segments) - 1
            if tail:
                segments.append(Segment(end - tail, stop, depth + end - tail - begin, parent, False))
            open_parent = None
            above[node] = parent
            if not tail:
                node += 1
                continue
        node = bisect_left(starts, stop)  # behind the subtree
    return segments


def even_pieces(begin, end, limit):
    """Yields [begin, end) cut into as few pieces as the limit allows, of sizes that differ by at most 1."""
    count = -(-(end - begin) // limit)
    for piece in range(count):
        yield begin + (end - begin) * piece // count, begin + (end - begin) * (piece + 1) // count


def prune(segments, wanted):
    """The segments that are wanted or above a wanted one; those that lose all that hung from them become leaves.

    wanted: a boolean for each segment, whether its own rows have something to compute.
    """
    keep, has_children = list(wanted), [False] * len(segments)
    for index in reversed(range(len(segments))):
        parent = segments[index].parent
        if keep[index] and parent >= 0:
            keep[parent] = has_children[parent] = True
    place = np.cumsum(keep) - 1
    return [
        Segment(s.begin, s.end, s.depth, int(place[s.parent]) if s.parent >= 0 else -1, has_children[index])
        for index, s in enumerate(segments)
        if keep[index]
    ]


def gradient_order(segments, on_path=()):
    """Yields the runs of an exact gradient pass: ("capture", place) or ("differentiate", place).

    A capture puts a segment's keys and values on the path, whose segments are then `on_path` and those captured since;
    an inner segment leaves it when it is differentiated, behind all that hang from it.
    """
    stack = list(on_path)
    for index in reversed(range(len(segments))):
        for above in path_to(segments, index)[len(stack) :]:
            yield "capture", above
            stack.append(above)
        yield "differentiate", index
        if segments[index].inner:
            stack.pop()


def path_to(segments, index):
    """Places of the segments above `segments[index]`, root first."""
    path = []
    while (index := segments[index].parent) >= 0:
        path.append(index)
    return path[::-1]


def path_capacity(segments):
    """The most tokens that a path and the segment at its end have together."""
    return max((segment.depth + segment.size for segment in segments), default=0)
