"""GRPO: rollouts, the verifier's rewards, one replayed update a step on fp32 master weights."""

import time
from dataclasses import dataclass

import torch

from regrow.demo.batch import make_batch
from regrow.demo.rollout import mean_reward
from regrow.demo.updates import packed_update
from regrow.replay import ReplayStats

LEARNING_RATE = 1e-5


def policy_dtype():
    """bf16, or fp32 on processors for which oneDNN has no bf16 product (those without AVX-512): torch's own is 40 times
    slower than fp32."""
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


class Master:
    """fp32 copies of a model's parameters, which AdamW updates; the model gets them back rounded.

    model: of any dtype; `parameters`: name -> fp32 tensor, of an fp32 model's weights where these are at hand.
    """

    def __init__(self, model, parameters=None, learning_rate=LEARNING_RATE):
        self.model = model
        if parameters is None:
            parameters = {name: value.detach().float() for name, value in model.named_parameters()}
        self.parameters = {name: value.detach().clone() for name, value in parameters.items()}
        # No weight decay: the policy should leave its beginning only where a reward pulls.
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=learning_rate, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def step(self, gradients):
        """Takes one step with `gradients` (name -> tensor of any dtype); returns their L2 norm."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in self.parameters.values()]).item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for name, weight in self.model.named_parameters():
            weight.copy_(self.parameters[name])
        return norm


@dataclass(frozen=True)
class Step:
    """One step's numbers; seconds of its two parts. replay: the engine's stats, None if no group's rewards differ."""

    reward: float
    loss: float
    gradient_norm: float
    groups_that_differ: int
    tokens_dense: int
    tokens_packed: int
    rollout_seconds: float
    update_seconds: float
    replay: ReplayStats | None = None


def learn_step(model, master, groups, rollout_seconds, chunk_tokens=None):
    """Updates the policy from groups that it has just sampled, those whose rewards differ."""
    started = time.perf_counter()
    differing = [group for group in groups if group.differs]
    if not differing:
        return Step(mean_reward(groups), 0.0, 0.0, 0, 0, 0, rollout_seconds, time.perf_counter() - started)
    batch = make_batch(differing)
    update = packed_update(model, batch, chunk_tokens)
    norm = master.step(update.gradients)
    return Step(
        reward=mean_reward(groups),
        loss=update.loss,
        gradient_norm=norm,
        groups_that_differ=len(differing),
        tokens_dense=batch.num_tokens,
        tokens_packed=update.num_tokens,
        rollout_seconds=rollout_seconds,
        update_seconds=time.perf_counter() - started,
        replay=update.stats,
    )


def learn(model, master, draws, num_steps, *, chunk_tokens=None, on_step=lambda step: None):
    """Takes `num_steps` steps and returns them; `next(draws)` samples a step's groups from the model."""
    steps = []
    for _ in range(num_steps):
        started = time.perf_counter()
        groups = next(draws)
        step = learn_step(model, master, groups, time.perf_counter() - started, chunk_tokens)
        steps.append(step)
        on_step(step)
    return steps


def heldout_reward(sampler, task):
    """Mean reward of the likeliest (greedy) response to each held-out question."""
    return mean_reward(sampler.likeliest(list(task.heldout.values())))
