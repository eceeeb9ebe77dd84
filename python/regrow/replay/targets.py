"""Which tokens a segment's rows predict: a row belongs to its segment, and so do all tokens that it predicts."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class SegmentTargets:
    """rows [R]: the rows of the segment that predict something, from its first; positions [N]: the axis positions of
    the tokens that they predict, wherever those stand; row [N]: the place in `rows` of each. int64, one device."""

    rows: torch.Tensor
    positions: torch.Tensor
    row: torch.Tensor


def check_where(where, tree, name):
    """Raises ValueError unless `where`, which the caller knows as `name`, is boolean [T] or None."""
    if where is None or (
        isinstance(where, torch.Tensor) and where.dtype == torch.bool and list(where.shape) == [tree.num_tokens]
    ):
        return
    got = f"{where.dtype} of shape {list(where.shape)}" if isinstance(where, torch.Tensor) else type(where).__name__
    raise ValueError(f"{name} must be a boolean tensor of shape [{tree.num_tokens}], got {got}")


class Targets:
    """The scored tokens of a tree, by the row that predicts them.

    where: boolean [T] of the tokens to score, or None for all that have a parent.
    """

    def __init__(self, tree, where=None):
        self.device = tree.subtree_end.device
        parents = tree.parent_index.cpu().numpy()
        scored = parents >= 0
        if where is not None:
            scored &= where.cpu().numpy()
        positions = np.flatnonzero(scored)
        self.positions = positions[np.argsort(parents[positions], kind="stable")]
        self.parents = parents[self.positions]

    def span(self, segment):
        return np.searchsorted(self.parents, [segment.begin, segment.end])

    def count(self, segment):
        begin, end = self.span(segment)
        return int(end - begin)

    def num_rows(self, segment):
        """How many of the segment's rows predict something."""
        begin, end = self.span(segment)
        return len(np.unique(self.parents[begin:end]))

    def of(self, segment):
        begin, end = self.span(segment)
        rows, row = np.unique(self.parents[begin:end] - segment.begin, return_inverse=True)
        arrays = rows, self.positions[begin:end], row
        return SegmentTargets(*(torch.from_numpy(np.ascontiguousarray(x)).to(self.device) for x in arrays))
