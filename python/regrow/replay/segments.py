"""A tree's segments for a job: those with something to score, of the size asked for or of the largest that fits."""

from dataclasses import dataclass, fields

import torch

from regrow.replay import schedule
from regrow.replay.gradients import gradient_bytes
from regrow.replay.ledger import Ledger, predict
from regrow.replay.probe import probe


@dataclass(frozen=True)
class Job:
    """What is to be done with a tree; targets: `Targets`. gradients: whether any are wanted, or values alone."""

    model: torch.nn.Module
    adapted: object
    tree: object
    targets: object
    gradients: bool
    exact: bool = True
    atomic: bool = True

    def segments(self, chunk_tokens):
        """The segments that have targets, and those above them."""
        tree = self.tree
        segments = schedule.cut(
            tree.node_start.cpu().numpy(), tree.parent.cpu().numpy(), tree.host_position_ids.numpy(),
            tree.host_subtree_end.numpy(), chunk_tokens,
        )  # fmt: skip
        return schedule.prune(segments, [self.targets.count(segment) > 0 for segment in segments])

    def ledger(self, chunk_tokens):
        """The predicted `Ledger`, zeros where nothing is to run; measures the model the first time."""
        segments = self.segments(chunk_tokens)
        if not segments:
            return Ledger(**dict.fromkeys((field.name for field in fields(Ledger)), 0))
        costs = probe(self.model, self.adapted, self.tree, exact=self.exact)
        gradients = None
        if self.gradients:
            gradients = gradient_bytes(self.model, several=len(segments) > 1, atomic=self.atomic)
        rows = [self.targets.num_rows(segment) for segment in segments]
        return predict(costs, segments, rows, self.tree.num_tokens, gradients=gradients, exact=self.exact)

    def chunk_tokens(self, chunk_tokens, budget_bytes):
        """`chunk_tokens`, checked; with a budget, the largest that is predicted to fit.

        Raises ValueError for a budget below the least that works, with that least.
        """
        if budget_bytes is None:
            if not isinstance(chunk_tokens, int) or isinstance(chunk_tokens, bool) or chunk_tokens < 1:
                raise ValueError(f"chunk_tokens is {chunk_tokens}: give a whole number of tokens, 1 or more")
            return chunk_tokens
        fitting, too_large = 0, max(1, self.tree.num_tokens) + 1
        least = self.ledger(1).total
        while too_large - fitting > 1:
            middle = (fitting + too_large) // 2
            total = self.ledger(middle).total
            least = min(least, total)
            fitting, too_large = (middle, too_large) if total <= budget_bytes else (fitting, middle)
        if fitting == 0:
            raise ValueError(
                f"budget_bytes is {budget_bytes:,}, and the least that works is predicted as {least:,}: give that, or "
                "train fewer parameters, or shorten the longest path"
            )
        return fitting
