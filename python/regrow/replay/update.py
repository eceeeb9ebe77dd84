"""The exact gradient of an objective over a whole tree, on the memory of one path (docs/replay.md)."""

from dataclasses import dataclass

import torch

from regrow.replay.gradients import Gradients
from regrow.replay.model import adapt, check
from regrow.replay.segments import Job
from regrow.replay.targets import Targets
from regrow.replay.walk import Walk

PREFIX_GRADS = ("exact", "detached")


@dataclass(frozen=True)
class ReplayStats:
    """What an update or a scoring pass did.

    segments, inner_segments: how many, and how many of them ran twice; capacity_tokens: the longest path with the
    segment at its end. forward_tokens passed without autograd, differentiated_tokens forward and backward.
    kv_bytes, kv_gradient_bytes: of the path's buffers; gradient_bytes: of the parameters, kept_gradient_bytes: of those
    set aside. compared_elements of keys and values were computed twice; differing_elements had other bits.
    """

    chunk_tokens: int
    segments: int
    inner_segments: int
    capacity_tokens: int
    forward_tokens: int
    differentiated_tokens: int
    kv_bytes: int
    kv_gradient_bytes: int
    gradient_bytes: int = 0
    kept_gradient_bytes: int = 0
    compared_elements: int = 0
    differing_elements: int = 0


@dataclass(frozen=True)
class ReplayResult:
    """loss: 0-d; logprobs, entropy [T] on the token axis, 0 at roots and at tokens the objective does not look at.

    All detached, fp32 (fp64 for fp64 models).
    """

    loss: torch.Tensor
    logprobs: torch.Tensor
    entropy: torch.Tensor
    stats: ReplayStats


def backward(
    model, tree, objective, *, chunk_tokens=4096, budget_bytes=None, prefix_grad="exact", atomic=True,
    temperature=1.0, progress=None,
):  # fmt: skip
    """Adds the gradient of `objective` to `.grad` of the model's parameters, as `loss.backward()` would.

    model: a transformers causal LM that `regrow.models.attach` has switched, wrapped or not, or a `Replayable`.
    objective(logprobs [T], tree, entropy [T]) -> scalar: any differentiable function of the log-probs of the tree's
    tokens and of the entropies (nats) of the rows that predict them, at `temperature`. It may offer more:
    `on_tokens(logprobs [N], tree, entropy [N], index [N])`, of the tokens at axis positions `index`, such that the
    parts over any partition sum to the objective: leaves then run forward once. `where(tree)` -> boolean [T]: the
    tokens that it looks at; others cost no logits, and beginnings that nothing scored depends on do not run.

    chunk_tokens: the most tokens that pass through the model at once; budget_bytes: chooses the largest that is
    predicted to fit in so many bytes beyond those live at the call. prefix_grad: "exact", or "detached", which drops
    what branches owe to their prefix. atomic: on an error `.grad` is what it was, for which gradients that are there at
    the call are set aside. progress(done, total): called with tokens that have passed through the model.

    Returns a ReplayResult. Raises ValueError, before any work, for what would end in a wrong number;
    FloatingPointError, before its segment is back-propagated, for a log-prob or derivative that is nan; RuntimeError
    for a model whose second run of a segment differs from its first.

        result = regrow.replay.backward(model, tree, objectives.GRPO(response_mask, advantages))
        optimizer.step()
    """
    if prefix_grad not in PREFIX_GRADS:
        raise ValueError(f"prefix_grad is {prefix_grad!r}: use one of {', '.join(map(repr, PREFIX_GRADS))}")
    adapted = adapt(model)
    check(model, adapted, tree, training=True)
    exact = prefix_grad == "exact"
    targets = Targets(tree, scored_tokens(objective, tree))
    job = Job(model, adapted, tree, targets, gradients=True, exact=exact, atomic=atomic)
    chunk_tokens = job.chunk_tokens(chunk_tokens, budget_bytes)
    segments = job.segments(chunk_tokens)
    additive = hasattr(objective, "on_tokens")
    total = planned_tokens(segments, exact=exact, values=not additive)
    walk = Walk(
        adapted, tree, segments, targets, temperature=temperature, exact=exact, on_tokens=reporter(progress, total)
    )
    gradients = Gradients(model, several=len(segments) > 1, atomic=atomic)
    with gradients:
        differentiate = walk.exact if exact else walk.detached
        if additive:
            weigh = Additive(objective, tree)
            differentiate(weigh)
        else:
            walk.values()
            weigh = Whole(objective, tree, walk.logprobs, walk.entropy)
            differentiate(weigh)
        gradient_bytes, kept_bytes = gradients.num_bytes()
    stats = make_stats(walk, chunk_tokens, gradient_bytes, kept_bytes)
    return ReplayResult(weigh.loss, walk.logprobs, walk.entropy, stats)


def logprobs(
    model, tree, *, where=None, chunk_tokens=4096, budget_bytes=None, temperature=1.0, progress=None
):  # fmt: skip
    """Log-probs and entropies of every token of a tree, values only, on the memory of one path.

    where: boolean [T], the tokens to score; others get 0. The other arguments are those of `backward`. Returns a
    ReplayResult whose loss is None. Raises as `backward` does.

        old = regrow.replay.logprobs(model, tree).logprobs  # [T]
    """
    adapted = adapt(model)
    check(model, adapted, tree)
    targets = Targets(tree, where)
    job = Job(model, adapted, tree, targets, gradients=False)
    chunk_tokens = job.chunk_tokens(chunk_tokens, budget_bytes)
    segments = job.segments(chunk_tokens)
    total = sum(segment.size for segment in segments)
    walk = Walk(
        adapted, tree, segments, targets, temperature=temperature, exact=False, on_tokens=reporter(progress, total)
    )
    walk.values()
    return ReplayResult(None, walk.logprobs, walk.entropy, make_stats(walk, chunk_tokens))


def predict(model, tree, objective=None, *, chunk_tokens=4096, prefix_grad="exact", atomic=True):
    """The predicted `Ledger` of `backward` with these arguments, or without an objective of `logprobs`; no gradient
    changes.

    Measures the model on short pieces of the tree the first time. Raises ValueError as `backward` does, and
    RuntimeError on the CPU while torch's profiler is running, by which bytes are counted there.

        regrow.replay.predict(model, tree, objective, chunk_tokens=2048).total  # bytes beyond what is live now
    """
    adapted = adapt(model)
    check(model, adapted, tree, training=objective is not None)
    targets = Targets(tree, None if objective is None else scored_tokens(objective, tree))
    job = Job(model, adapted, tree, targets, objective is not None, prefix_grad == "exact", atomic)
    return job.ledger(job.chunk_tokens(chunk_tokens, None))


class Additive:
    """The derivatives of an objective that is a sum over tokens, segment by segment; `loss` is the sum so far."""

    def __init__(self, objective, tree):
        self.objective, self.tree, self.loss = objective, tree, None

    def __call__(self, positions, logp, entropy):
        logp.requires_grad_()
        entropy.requires_grad_()
        part = differentiated(self.objective.on_tokens(logp, self.tree, entropy, positions))
        self.loss = part if self.loss is None else self.loss + part
        return torch.zeros_like(logp) if logp.grad is None else logp.grad, entropy.grad


class Whole:
    """The derivatives of an objective of all log-probs together."""

    def __init__(self, objective, tree, logp, entropy):
        logp, entropy = logp.detach().requires_grad_(), entropy.detach().requires_grad_()
        with torch.enable_grad():
            self.loss = differentiated(objective(logp, tree, entropy))
        self.dlogp = torch.zeros_like(logp) if logp.grad is None else logp.grad
        self.dentropy = entropy.grad

    def __call__(self, positions, logp, entropy):
        return self.dlogp[positions], None if self.dentropy is None else self.dentropy[positions]


def differentiated(loss):
    """The loss, detached, after its backward. Raises ValueError unless it is one number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"the objective must return one number, got {describe(loss)}")
    if loss.requires_grad:
        loss.backward()
    return loss.detach().reshape(())


def describe(x):
    return f"a tensor of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__


def scored_tokens(objective, tree):
    """What `objective.where` says, or None: all tokens."""
    if not hasattr(objective, "where"):
        return None
    where = objective.where(tree)
    if where.dtype != torch.bool or list(where.shape) != [tree.num_tokens]:
        raise ValueError(
            f"objective.where must give a boolean tensor of shape [{tree.num_tokens}], "
            f"got {where.dtype} of shape {list(where.shape)}"
        )
    return where


def planned_tokens(segments, *, exact, values):
    """How many tokens will pass through the model."""
    once = sum(segment.size for segment in segments)
    twice = sum(segment.size for segment in segments if segment.inner) if exact else 0
    return once + twice + (once if values else 0)


def reporter(progress, total):
    done = 0

    def on_tokens(count):
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return on_tokens


def make_stats(walk, chunk_tokens, gradient_bytes=0, kept_bytes=0):
    kv_bytes, kv_gradient_bytes = walk.path.num_bytes()
    return ReplayStats(
        chunk_tokens=chunk_tokens,
        segments=len(walk.segments),
        inner_segments=sum(segment.inner for segment in walk.segments),
        capacity_tokens=walk.path.capacity,
        forward_tokens=walk.counts.forward,
        differentiated_tokens=walk.counts.differentiated,
        kv_bytes=kv_bytes,
        kv_gradient_bytes=kv_gradient_bytes,
        gradient_bytes=gradient_bytes,
        kept_gradient_bytes=kept_bytes,
        compared_elements=walk.path.repeats.compared,
        differing_elements=int(walk.path.repeats.differing),
    )
