"""One update computed twice: every sequence whole, and the packed tree."""

from dataclasses import dataclass

import torch

import regrow
from regrow.demo.objective import grpo_loss
from regrow.models import packed


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


def replicated_update(model, batch, on_sequence=lambda: None):
    """Each sequence on its own, no padding, gradients accumulated; logits only for the rows that predict a response.

    The model's attention implementation is the caller's choice. `on_sequence()` is called after each backward.
    """
    model.zero_grad(set_to_none=True)
    losses, logps = [], []
    for sequence, start, weights in zip(batch.sequences, batch.prompt_lengths, batch.token_weights, strict=True):
        response = sequence[start:]
        logits = model(sequence[None], use_cache=False, logits_to_keep=len(response) + 1).logits[0, :-1]
        logp = torch.log_softmax(logits, -1).gather(-1, response[:, None])[:, 0]
        loss = grpo_loss(logp, weights[start:])
        loss.backward()
        losses.append(loss.item())
        logps.append(logp.detach())
        on_sequence()
    return Update(sum(losses), torch.cat(logps), take_gradients(model), batch.num_tokens)


def packed_update(model, batch):
    """All sequences as one tree, one forward and one backward.

    A token that several responses share is computed once; unpacked, it counts once for each, with that one's advantage.
    """
    model.zero_grad(set_to_none=True)
    tree = regrow.PrefixTree.from_sequences(batch.sequences)
    hidden = packed(model.model, tree).last_hidden_state[0]
    logp = tree.unpack(regrow.tree_logprobs(hidden, model.lm_head.weight, tree))
    weights = torch.cat(batch.token_weights)
    loss = grpo_loss(logp, weights)
    loss.backward()
    return Update(loss.item(), logp.detach()[response_rows(batch)], take_gradients(model), tree.num_tokens)


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
