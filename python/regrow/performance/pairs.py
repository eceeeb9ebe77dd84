"""How many (query, key) pairs a rectangle of a tree has to compute."""

import numpy as np


def useful_pairs(subtree_end, position_ids, query_positions, key_start=0, num_keys=None, window=None):
    """Pairs that are visible; all arguments on the axis, as in regrow.plan. In O(tokens + queries).

    A query's path is one token at each depth, in the order of the axis. So the keys that it sees lie between two
    depths: past its ancestors before `key_start` and before those at the rectangle's end, and within the window.
    """
    depth = np.asarray(position_ids)[query_positions]
    first = _ancestors_before(subtree_end, key_start)[query_positions]
    end_key = len(subtree_end) if num_keys is None else key_start + num_keys
    end = _ancestors_before(subtree_end, end_key)[query_positions]
    if window:
        first = np.maximum(first, depth - window + 1)
    return int(np.maximum(end - first, 0).sum())


def _ancestors_before(subtree_end, position):
    """For each token: how many keys before `position` it sees, itself included."""
    ends = np.asarray(subtree_end[:position], dtype=np.int64)
    change = np.zeros(len(subtree_end) + 1, dtype=np.int64)
    change[: len(ends)] += 1
    np.subtract.at(change, ends, 1)
    return np.cumsum(change)[:-1]
