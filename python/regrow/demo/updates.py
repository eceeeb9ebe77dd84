"""One update computed in two ways: every sequence whole, and the packed tree through the replay engine."""

from collections import defaultdict
from dataclasses import dataclass

import torch

from regrow import replay

CLIP = 0.2  # of the replicated loss; that of `objectives.GRPO`
MAX_ROWS = 4  # of one replicated forward: more is not faster on two cores, and takes more memory


@dataclass(frozen=True)
class Update:
    """What one way of computing the update yields.

    loss: scalar; logp: fp [N], of the response tokens, sequence after sequence; gradients: one tensor per parameter;
    num_tokens: of the sequences, or of the tree; stats: the replay engine's, None for the replicated update.
    """

    loss: float
    logp: torch.Tensor
    gradients: dict[str, torch.Tensor]
    num_tokens: int
    stats: replay.ReplayStats | None = None


def replicated_update(model, batch, on_sequences=lambda count: None):
    """Each sequence whole, batched with those of the same shape so that nothing is padded, gradients accumulated.

    Logits are computed only for the rows that predict a response, and their softmax in fp64: in fp32 the gradient of a
    likely token, 1 - p, would lose the digits in which the two updates are compared (docs/demo.md). The model's
    attention implementation is the caller's choice. `on_sequences(count)` is called after each backward.
    """
    model.zero_grad(set_to_none=True)
    loss_sum, logps = 0.0, [None] * len(batch.sequences)
    for start, rows in same_shape(batch):
        tokens = torch.stack([batch.sequences[row] for row in rows]).to(model.device)
        advantages = torch.tensor([batch.advantages[row] for row in rows], dtype=torch.float64, device=model.device)
        old = None if batch.old_logp is None else torch.stack([batch.old_logp[row] for row in rows])
        responses = tokens[:, start:]
        logits = model(tokens, use_cache=False, logits_to_keep=responses.size(1) + 1).logits[:, :-1]
        logp = torch.log_softmax(logits, -1, dtype=torch.float64).gather(-1, responses[..., None])[..., 0]
        loss = grpo_sum(logp, advantages[:, None], old) / batch.num_response_tokens
        loss.backward()
        loss_sum += loss.item()
        for row, values in zip(rows, logp.detach(), strict=True):
            logps[row] = values
        on_sequences(len(rows))
    return Update(loss_sum, torch.cat(logps), take_gradients(model), batch.num_tokens)


def same_shape(batch):
    """Yields (prompt length, indices) of sequences with equal lengths of prompt and response."""
    rows = defaultdict(list)
    for index, (sequence, start) in enumerate(zip(batch.sequences, batch.prompt_lengths, strict=True)):
        rows[start, len(sequence)].append(index)
    for (start, _), indices in rows.items():
        for first in range(0, len(indices), MAX_ROWS):
            yield start, indices[first : first + MAX_ROWS]


def grpo_sum(logp, advantages, old_logp=None):
    """GRPO's clipped surrogate (DeepSeekMath, eq. 3, without the KL term), negated and summed -> scalar.

    Plain on purpose, and not `regrow.replay.objectives`: it is what those are compared with. logp, old_logp [rows, N],
    advantages [rows, 1]. Without `old_logp` the samples are from the policy itself: the ratio is 1.
    """
    ratio = torch.exp(logp - (logp.detach() if old_logp is None else old_logp.to(logp)))
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).sum()


def packed_update(model, batch, chunk_tokens=None):
    """All sequences as one tree, `chunk_tokens` of it at a time, or in one pass.

    A token that several responses share is computed once; unpacked, it counts once for each, with that one's advantage.
    """
    model.zero_grad(set_to_none=True)
    tree, objective = batch.tree(model.device), batch.objective(model.device)
    result = replay.backward(model, tree, objective, chunk_tokens=chunk_tokens or tree.num_tokens)
    logp = tree.unpack(result.logprobs)[torch.cat(batch.response_masks).to(model.device)]
    return Update(result.loss.item(), logp, take_gradients(model), tree.num_tokens, result.stats)


def take_gradients(model):
    """Moves the gradients out of the model; a parameter without one counts as zero."""
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }
    model.zero_grad(set_to_none=True)
    return gradients


def relative_l2(gradients, reference):
    """|gradients - reference| / |reference| over all parameters as one vector, summed in fp64; 0/0 is nan."""
    difference = sum((gradients[name] - value).double().square().sum() for name, value in reference.items())
    norm = sum(value.double().square().sum() for value in reference.values())
    return (difference / norm).sqrt().item()
