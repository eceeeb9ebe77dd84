"""One update computed twice: every sequence whole, and the packed tree."""

from collections import defaultdict
from dataclasses import dataclass

import torch

import regrow
from regrow.demo.objective import grpo_loss
from regrow.models import packed

MAX_ROWS = 4  # of one replicated forward: more is not faster on two cores, and takes more memory


@dataclass(frozen=True)
class Update:
    """What one way of computing the update yields.

    loss: scalar; logp: fp [N], of the response tokens, sequence after sequence; gradients: one tensor per parameter;
    num_tokens: how many went through the model.
    """

    loss: float
    logp: torch.Tensor
    gradients: dict[str, torch.Tensor]
    num_tokens: int


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
        weights = torch.stack([batch.token_weights[row] for row in rows])[:, start:]
        old = None if batch.old_logp is None else torch.stack([batch.old_logp[row] for row in rows])
        responses = tokens[:, start:]
        logits = model(tokens, use_cache=False, logits_to_keep=responses.size(1) + 1).logits[:, :-1]
        logp = torch.log_softmax(logits, -1, dtype=torch.float64).gather(-1, responses[..., None])[..., 0]
        loss = grpo_loss(logp, weights, old)
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


def packed_update(model, batch):
    """All sequences as one tree, one forward and one backward.

    A token that several responses share is computed once; unpacked, it counts once for each, with that one's advantage.
    """
    model.zero_grad(set_to_none=True)
    tree, responses = regrow.PrefixTree.from_sequences(batch.sequences), response_rows(batch)
    weights = torch.cat(batch.token_weights)[responses]
    logp = response_logprobs(model, tree.to(model.device), responses.to(model.device))
    loss = grpo_loss(logp, weights, None if batch.old_logp is None else torch.cat(batch.old_logp))
    loss.backward()
    return Update(loss.item(), logp.detach(), take_gradients(model), tree.num_tokens)


def response_logprobs(model, tree, responses):
    """Log-probs of the sequences' tokens where `responses` (boolean, one each) holds; only their rows meet the head."""
    scored = torch.zeros(tree.num_tokens, dtype=torch.bool, device=responses.device)
    scored[tree.gather_index[responses]] = True
    hidden = packed(model.model, tree).last_hidden_state[0]
    return tree.unpack(regrow.tree_logprobs(hidden, model.lm_head.weight, tree, where=scored))[responses]


def response_rows(batch):
    """Boolean [sum of lengths]: which tokens of the concatenated sequences belong to a response."""
    return torch.cat(
        [
            torch.arange(len(sequence)) >= start
            for sequence, start in zip(batch.sequences, batch.prompt_lengths, strict=True)
        ]
    )


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
