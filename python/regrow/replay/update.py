"""The exact gradient of an objective over a whole tree, on the memory of one path (docs/replay.md)."""

from dataclasses import dataclass

import torch

from regrow.replay.derivatives import Additive, Whole
from regrow.replay.gradients import Gradients
from regrow.replay.job import Job
from regrow.replay.progress import reporter, update_tokens
from regrow.replay.walk import Walk


@dataclass(frozen=True)
class ReplayStats:
    """What an update did.

    segments, inner_segments: how many, and how many of them ran twice; capacity_tokens: the longest path with the
    segment at its end. forward_tokens passed without autograd, differentiated_tokens forward and backward.
    kv_bytes, kv_gradient_bytes: of the path's buffers; gradient_bytes: of the parameters, kept_gradient_bytes: of those
    set aside. compared_elements of keys and values were computed twice, and differing_elements had other bits;
    differing_segments: how many inner segments gave other last hidden states.
    """

    chunk_tokens: int
    segments: int
    inner_segments: int
    capacity_tokens: int
    forward_tokens: int
    differentiated_tokens: int
    kv_bytes: int
    kv_gradient_bytes: int
    gradient_bytes: int
    kept_gradient_bytes: int
    compared_elements: int
    differing_elements: int
    differing_segments: int


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
    tokens that it looks at; others cost no logits, and subtrees without any do not run.

    chunk_tokens: the most tokens that pass through the model at once; budget_bytes: chooses the largest that is
    predicted to fit in so many bytes beyond those live at the call. prefix_grad: "exact", or "detached", which drops
    what branches owe to their prefix. atomic: on an error `.grad` is what it was, for which gradients that are there at
    the call are set aside. progress(done, total): called with tokens that have passed through the model.

    Returns a ReplayResult. Raises ValueError, before any work, for what would end in a wrong number;
    FloatingPointError, before its segment is back-propagated, for a log-prob or derivative that is nan; RuntimeError
    for a model that breaks the protocol: its second run of a segment differs from its first, layers are left out.

        result = regrow.replay.backward(model, tree, objectives.GRPO(response_mask, advantages))
        optimizer.step()
    """
    job = Job.of_update(model, tree, objective, prefix_grad=prefix_grad, atomic=atomic, temperature=temperature)
    chunk_tokens = job.chunk_tokens(chunk_tokens, budget_bytes)
    segments = job.segments(chunk_tokens)
    additive = hasattr(objective, "on_tokens")
    total = update_tokens(segments, exact=job.exact, values=not additive)
    walk = Walk(job, segments, temperature=temperature, on_tokens=reporter(progress, total))
    differentiate = walk.exact if job.exact else walk.detached
    with Gradients(model, several=len(segments) > 1, atomic=atomic) as gradients:
        if additive:
            weigh = Additive(objective, tree, walk.logprobs.new_zeros(()))
        else:
            walk.values()
            weigh = Whole(objective, tree, walk.logprobs, walk.entropy)
        differentiate(weigh)
        if segments and not weigh.depends:
            raise ValueError(
                "the objective's loss depends on no log-prob and no entropy, so it has no gradient: compute it from "
                "the tensors that it is given, without detach() or item()"
            )
        gradient_bytes = gradients.num_bytes()
    return ReplayResult(weigh.loss, walk.logprobs, walk.entropy, make_stats(walk, chunk_tokens, *gradient_bytes))


def make_stats(walk, chunk_tokens, gradient_bytes, kept_bytes):
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
        differing_segments=walk.differing_segments,
    )
