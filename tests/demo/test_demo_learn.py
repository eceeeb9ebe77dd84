import dataclasses

import pytest
import torch

from regrow.demo.batch import make_batch
from regrow.demo.learn import Master, learn, learn_step, policy_dtype
from regrow.demo.updates import packed_update


@pytest.fixture
def policy(model):
    model.bfloat16().set_attn_implementation("regrow")
    return model


def test_updates_make_rewarded_responses_likelier(policy, groups):
    master = Master(policy, learning_rate=1e-2)
    batch = make_batch(groups)

    def rewarded():
        logp = packed_update(policy, batch).logp
        parts = logp.split([int(mask.sum()) for mask in batch.response_masks])
        return sum(advantage * part.sum() for advantage, part in zip(batch.advantages, parts, strict=True))

    before, steps = rewarded(), learn(policy, master, iter([groups] * 3), 3, chunk_tokens=5)
    assert rewarded() > before
    assert [step.groups_that_differ for step in steps] == [2, 2, 2]
    assert all(step.gradient_norm > 0 for step in steps)
    assert steps[0].tokens_dense == batch.num_tokens > steps[0].tokens_packed == 21
    assert {step.replay.forward_tokens for step in steps} == {10}
    assert {step.replay.differentiated_tokens for step in steps} == {20}  # the last token of all predicts nothing


def test_loss_falls_on_stored_rollouts(policy, groups):
    batch = make_batch(groups)
    lengths = [int(mask.sum()) for mask in batch.response_masks]
    batch = dataclasses.replace(batch, old_logp=list(packed_update(policy, batch).logp.split(lengths)))
    master, losses = Master(policy, learning_rate=1e-3), []
    for _ in range(4):
        update = packed_update(policy, batch)
        losses.append(update.loss)
        master.step(update.gradients)
    assert losses[-1] < losses[0] - 1e-3


def test_groups_of_equal_rewards_change_nothing(policy, groups):
    before = {name: value.clone() for name, value in policy.named_parameters()}
    equal = [dataclasses.replace(group, rewards=[1.0] * len(group.rewards)) for group in groups]
    step = learn_step(policy, Master(policy), equal, 0.5)
    assert (step.reward, step.groups_that_differ, step.rollout_seconds) == (1.0, 0, 0.5)
    for name, value in policy.named_parameters():
        assert torch.equal(value, before[name])


def test_groups_of_equal_rewards_are_left_out(policy, groups):
    first, second = groups
    step = learn_step(policy, Master(policy), [first, dataclasses.replace(second, rewards=[0.0] * 3)], 0.0)
    assert step.groups_that_differ == 1
    assert step.tokens_dense == make_batch([first]).num_tokens


def test_steps_too_small_for_bf16_add_up_in_fp32(policy):
    master = Master(policy, learning_rate=1e-5)
    name, weight = next(iter(policy.named_parameters()))
    start, gradients = weight.detach().clone(), {n: torch.ones_like(p) for n, p in policy.named_parameters()}
    norm = master.step(gradients)
    assert norm == pytest.approx(sum(p.numel() for p in policy.parameters()) ** 0.5, rel=1e-4)
    large = start.abs() > 0.02  # a bf16 step there is 6e-5 or more
    assert torch.equal(weight[large], start[large])
    for _ in range(40):
        master.step(gradients)
    torch.testing.assert_close(master.parameters[name], start.float() - 41e-5, rtol=0, atol=1e-6)
    assert torch.equal(weight, master.parameters[name].bfloat16())
    assert (weight[large] < start[large]).all()


def test_a_master_may_start_from_finer_weights(policy):
    finer = {name: value.detach().float() + 1e-6 for name, value in policy.named_parameters()}
    master = Master(policy, finer)
    master.step({name: torch.zeros_like(value) for name, value in policy.named_parameters()})
    for name, value in finer.items():
        assert torch.equal(master.parameters[name], value)
        assert master.parameters[name].data_ptr() != value.data_ptr()


def test_the_policy_is_in_bf16_where_the_processor_multiplies_it(monkeypatch):
    for fast, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda fast=fast: fast)
        assert policy_dtype() is dtype
