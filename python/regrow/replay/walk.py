"""Passes over the segments of a tree: every segment runs with the keys and values of its path in place."""

from dataclasses import dataclass

import torch

import regrow
from regrow.dtypes import accumulation_dtype
from regrow.replay.path import Path
from regrow.replay.run import Run
from regrow.replay.schedule import gradient_order, path_capacity


@dataclass
class Counts:
    """Tokens that passed through the model: forward alone, and forward and backward."""

    forward: int = 0
    differentiated: int = 0


class Walk:
    """One `Job`'s tree, cut into segments, on the path of its model.

    on_tokens(count): called after each run of a segment. logprobs and entropy [T], fp32 (fp64), fill as segments are
    scored; tokens that are no targets keep 0.
    """

    def __init__(self, job, segments, *, temperature, on_tokens):
        self.model, self.tree, self.segments, self.targets = job.adapted, job.tree, segments, job.targets
        self.temperature, self.on_tokens = temperature, on_tokens
        self.path = Path(path_capacity(segments), job.exact)
        self.stack = []  # places of the inner segments whose keys and values are on the path
        self.hidden_sums = {}  # of those, the checksum of their last hidden states
        self.differing_segments = 0
        self.counts = Counts()
        self.reached = False  # whether anything has been back-propagated
        dtype = accumulation_dtype(self.model.replay_head().weight.dtype)
        self.logprobs = torch.zeros(self.tree.num_tokens, dtype=dtype, device=self.tree.subtree_end.device)
        self.entropy = torch.zeros_like(self.logprobs)

    def values(self):
        """Scores all targets without autograd. The path of the last segment stays, and `exact` begins there."""
        for index, segment in enumerate(self.segments):
            self.leave_for(segment)
            with torch.no_grad():
                hidden, _ = self.run(segment)
                self.score(hidden, segment)
            if segment.inner:
                self.stack.append(index)
                self.hidden_sums[index] = checksum(hidden)

    def exact(self, weigh):
        """Every segment under autograd, after those that hang from it: their part of its keys' gradients is there.

        weigh(positions, logprobs, entropy) -> (dlogprobs, dentropy or None) [N]: the objective's gradient for the
        tokens at these axis positions.
        """
        order = gradient_order(self.segments, self.stack)
        self.stack = []
        for step, index in order:
            segment = self.segments[index]
            if step == "capture":
                with torch.no_grad():
                    self.hidden_sums[index] = checksum(self.run(segment)[0])
                continue
            with torch.enable_grad():
                hidden, run = self.run(segment, repeated=segment.inner)  # its first run: for those that hang from it
                self.path.repeats.check(segment)
                if segment.inner:
                    self.differing_segments += int(checksum(hidden) != self.hidden_sums.pop(index))
                self.differentiate(hidden, segment, weigh)
            self.path.repeats.check(segment)  # what checkpoints computed again
            self.path.check_taken(run)
        self.check_reached()

    def detached(self, weigh):
        """Every segment once, under autograd if its rows have targets; no gradient reaches its path."""
        for index, segment in enumerate(self.segments):
            self.leave_for(segment)
            scored = self.targets.count(segment) > 0
            with torch.set_grad_enabled(scored):
                hidden, _ = self.run(segment)
                if scored:
                    self.differentiate(hidden, segment, weigh)
            self.path.repeats.check(segment)  # what checkpoints computed again
            if segment.inner:
                self.stack.append(index)
        self.check_reached()

    def leave_for(self, segment):
        while self.stack and self.stack[-1] != segment.parent:
            self.stack.pop()

    def run(self, segment, *, repeated=False):
        """Last hidden states [S,H] of the segment, and the run that made them."""
        torch.clear_autocast_cache()  # a weight that was cast without autograd would have no gradient under it
        run = Run(self.path, self.tree, segment, repeated=repeated)
        hidden = self.model.replay_hidden(run)
        run.finish()
        if torch.is_grad_enabled():
            self.counts.differentiated += segment.size
        else:
            self.counts.forward += segment.size
        self.on_tokens(segment.size)
        return hidden, run

    def score(self, hidden, segment):
        """(axis positions, log-probs, entropies) [N] of the targets of the segment's rows; they enter the results.

        Raises FloatingPointError for a log-prob that is no number.
        """
        targets = self.targets.of(segment)
        head = self.model.replay_head()
        logp, row_entropy = regrow.row_logprobs(
            regrow.replay_gather(hidden, targets.rows), head.weight, targets.row, self.tree.tokens[targets.positions],
            **head.options(self.temperature),
        )  # fmt: skip
        entropy = regrow.replay_gather(row_entropy, targets.row)
        refuse_nan(logp.detach(), targets.positions, self.tree, "log-prob")
        self.logprobs[targets.positions] = logp.detach()
        self.entropy[targets.positions] = entropy.detach()
        return targets.positions, logp, entropy

    def differentiate(self, hidden, segment, weigh):
        """Back-propagates what the segment's rows contribute, and what its descendants left at its keys."""
        if self.targets.count(segment) == 0:
            self.back_propagate([hidden], [torch.zeros_like(hidden)])
            return
        positions, logp, entropy = self.score(hidden, segment)
        dlogp, dentropy = weigh(positions, logp.detach(), entropy.detach())
        refuse_nan(dlogp, positions, self.tree, "objective's derivative by the log-prob")
        outputs, gradients = [logp], [dlogp]
        if dentropy is not None:
            refuse_nan(dentropy, positions, self.tree, "objective's derivative by the entropy")
            outputs, gradients = [logp, entropy], [dlogp, dentropy]
        self.back_propagate(outputs, gradients)

    def back_propagate(self, outputs, gradients):
        """Nothing, for outputs that depend on no trained parameter, as those of an expert that has no token here."""
        if not outputs[0].requires_grad:
            return
        self.reached = True
        torch.clear_autocast_cache()  # reentrant checkpoints filled it without autograd, and compute again with it
        torch.autograd.backward(outputs, gradients)

    def check_reached(self):
        """Raises RuntimeError if no segment's log-probs depended on a trained parameter."""
        if self.segments and not self.reached:
            raise RuntimeError(
                "no log-prob depends on a parameter that requires a gradient: require one of parameters that take "
                "part, and under reentrant checkpointing of what enters it (model.enable_input_require_grads())"
            )


def checksum(x):
    """The sum of x's bits as whole numbers, modulo 2**64, in any order of summation the same."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().contiguous().view(bits).sum(dtype=torch.int64)


def refuse_nan(values, positions, tree, name):
    """Raises FloatingPointError that names the first NaN by sequence and place; values [N] at axis `positions`."""
    wrong = torch.isnan(values)
    if not wrong.any():
        return
    position = int(positions[wrong].min())
    dense = int((tree.gather_index == position).nonzero()[0]) if (tree.gather_index == position).any() else None
    if dense is None:
        where = "a token of no sequence"
    else:
        sequence = int(torch.searchsorted(tree.cu_seqlens, dense, right=True)) - 1
        where = f"token {dense - int(tree.cu_seqlens[sequence])} of sequence {sequence}"
    raise FloatingPointError(
        f"the {name} of {where} (axis position {position}) is nan: look for inf or nan in the weights, or for a dtype "
        "too narrow for the activations"
    )
