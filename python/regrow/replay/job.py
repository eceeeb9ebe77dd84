"""What is to be done with a tree, checked before any work, and its segments: of the size asked for or that fits."""

from dataclasses import dataclass, fields
from numbers import Integral

import torch

from regrow.replay import ledger, schedule
from regrow.replay.gradients import gradient_bytes, refuse_hooks
from regrow.replay.ledger import Ledger
from regrow.replay.model import adapt, check
from regrow.replay.probe import probe
from regrow.replay.targets import Targets, check_where

PREFIX_GRADS = ("exact", "detached")


@dataclass(frozen=True)
class Job:
    """adapted: the model as a `Replayable`; targets: `Targets`. gradients: whether any are wanted, or values alone;
    exact, atomic: as `backward` has them, False for values."""

    model: torch.nn.Module
    adapted: object
    tree: object
    targets: object
    gradients: bool
    exact: bool = False
    atomic: bool = False

    @classmethod
    def of_update(cls, model, tree, objective, *, prefix_grad, atomic, temperature=1.0):
        """Raises ValueError for what would end in a wrong number."""
        if prefix_grad not in PREFIX_GRADS:
            raise ValueError(f"prefix_grad is {prefix_grad!r}: use one of {', '.join(map(repr, PREFIX_GRADS))}")
        adapted = adapt(model)
        check(model, adapted, tree, temperature, training=True)
        refuse_hooks(model)
        where = objective.where(tree) if hasattr(objective, "where") else None
        check_where(where, tree, "what objective.where gives")
        return cls(model, adapted, tree, Targets(tree, where), True, prefix_grad == "exact", atomic)

    @classmethod
    def of_values(cls, model, tree, where, *, temperature=1.0):
        """Raises ValueError for what would end in a wrong number."""
        adapted = adapt(model)
        check(model, adapted, tree, temperature)
        check_where(where, tree, "where")
        return cls(model, adapted, tree, Targets(tree, where), gradients=False)

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
        costs = probe(self.model, self.adapted, self.tree, gradients=self.gradients, exact=self.exact)
        gradients = None
        if self.gradients:
            gradients = gradient_bytes(self.model, several=len(segments) > 1, atomic=self.atomic)
        rows = [self.targets.num_rows(segment) for segment in segments]
        return ledger.predict(costs, segments, rows, self.tree.num_tokens, gradients=gradients, exact=self.exact)

    def chunk_tokens(self, chunk_tokens, budget_bytes):
        """`chunk_tokens`, checked; with a budget, the largest that is predicted to fit.

        Raises ValueError for a budget below the least that works, with that least.
        """
        if budget_bytes is None:
            if not isinstance(chunk_tokens, Integral) or isinstance(chunk_tokens, bool) or chunk_tokens < 1:
                raise ValueError(f"chunk_tokens is {chunk_tokens}: give a whole number of tokens, 1 or more")
            return int(chunk_tokens)
        fitting, too_large = 0, max(1, self.tree.num_tokens)
        least = self.ledger(too_large).total
        if least <= budget_bytes:  # one segment, whose 16-bit gradients have no fp32 sums: less may need more
            return too_large
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


def predict(model, tree, objective=None, *, chunk_tokens=4096, prefix_grad="exact", atomic=True):
    """The predicted `Ledger` of `backward` with these arguments, or without an objective of `logprobs`; no gradient
    changes.

    Measures the model on short pieces of the tree the first time. Raises ValueError as `backward` does, and
    RuntimeError on the CPU while torch's profiler is running, by which bytes are counted there.

        regrow.replay.predict(model, tree, objective, chunk_tokens=2048).total  # bytes beyond what is live now
    """
    if objective is None:
        job = Job.of_values(model, tree, None)
    else:
        job = Job.of_update(model, tree, objective, prefix_grad=prefix_grad, atomic=atomic)
    return job.ledger(job.chunk_tokens(chunk_tokens, None))
