import dataclasses
import itertools

import pytest
import torch

from lifted_casts import LiftedCasts, recompute_lifted
from regrow.demo.batch import make_batch
from regrow.demo.compare import compare
from regrow.demo.updates import CLIP, grpo_sum, packed_update, relative_l2, replicated_update, same_shape
from regrow.live_bytes import peak_bytes

NAMES = ["replicated", "packed", "replayed"]
ONE_PASS, CHUNK = None, 5  # the prompts share 7 tokens, which are captured in two segments


def both_updates(model, batch, chunk_tokens=ONE_PASS):
    model.set_attn_implementation("sdpa")
    replicated = replicated_update(model, batch)
    model.set_attn_implementation("regrow")
    return replicated, packed_update(model, batch, chunk_tokens)


# Recomputation in backward calls the hook a second time.
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("chunk_tokens", [ONE_PASS, CHUNK])
def test_packed_gradient_is_the_replicated_gradient_in_fp64(model, batch, checkpointing, chunk_tokens):
    model.double().train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": recompute_lifted})
    with LiftedCasts():
        replicated, packed = both_updates(model, batch, chunk_tokens)
    assert (packed.stats.segments > 1) == (packed.stats.forward_tokens > 0) == (chunk_tokens is CHUNK)
    assert relative_l2(packed.gradients, replicated.gradients) < 1e-12
    for name, gradient in replicated.gradients.items():  # each on its own: a lost parameter cannot hide in a norm
        assert gradient.norm() > 0, name
        torch.testing.assert_close(packed.gradients[name], gradient, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(packed.logp, replicated.logp, rtol=1e-12, atol=1e-12)
    assert packed.loss == pytest.approx(replicated.loss, abs=1e-14)


def test_comparison_alternates_and_agrees_in_fp32(model, batch):
    steps = []
    comparison = compare(model, batch, CHUNK, rounds=2, on_step=lambda label, count: steps.append((label, count)))
    assert sum(count for label, count in steps if label == "replicated") == 3 * 7
    assert [label for label, _ in itertools.groupby(label for label, _ in steps)] == ["fp64", *NAMES * 3]
    assert sum(count for label, count in steps if label == "fp64") == 7
    assert list(comparison.relative_l2) == NAMES and max(comparison.relative_l2.values()) < 1e-5
    assert {name: len(seconds) for name, seconds in comparison.seconds.items()} == dict.fromkeys(NAMES, 2)
    assert min(comparison.peak_bytes.values()) > 0
    updates = comparison.updates
    assert updates["replicated"].num_tokens == batch.num_tokens == 9 * 4 + 8 * 3 + 10 + 8
    assert updates["packed"].num_tokens == updates["replayed"].num_tokens == 7 + (2 + 3 + 2) + (1 + 4 + 1 + 1)
    assert updates["packed"].stats.segments == 1 < updates["replayed"].stats.segments
    assert comparison.speedup("replayed") > 0


def test_comparison_stops_at_the_time_limit_but_not_before_a_timed_round(model, batch):
    assert len(compare(model, batch, CHUNK, rounds=5, time_limit_seconds=0.0).seconds["packed"]) == 1


def test_peak_bytes_are_counted_from_what_was_there():
    kept = torch.ones(1000)

    def run():
        half = kept.double()  # 8,000
        return (half + 1).float()  # 8,000 more at the peak, or 8,000 + 4,000 after it

    result, peak = peak_bytes(run)
    assert result.dtype == torch.float32
    assert 20_000 <= peak <= 20_500


def test_rows_of_one_forward_have_one_shape(batch):
    rows = list(same_shape(batch))
    assert sorted(index for _, indices in rows for index in indices) == list(range(7))
    for start, indices in rows:
        assert {batch.prompt_lengths[index] for index in indices} == {start}
        assert len({len(batch.sequences[index]) for index in indices}) == 1
    assert (9, [0, 1]) in rows


def test_old_log_probs_reach_both_updates(model, batch):
    model.set_attn_implementation("regrow")
    lengths = [int(mask.sum()) for mask in batch.response_masks]
    old = [logp + 0.3 * (-1) ** i for i, logp in enumerate(packed_update(model, batch).logp.split(lengths))]
    replicated, packed = both_updates(model, dataclasses.replace(batch, old_logp=old), CHUNK)
    assert relative_l2(packed.gradients, replicated.gradients) < 1e-5
    assert packed.loss == pytest.approx(replicated.loss, abs=1e-6)
    assert relative_l2(packed.gradients, packed_update(model, batch).gradients) > 0.1


def test_updates_leave_no_gradient_behind(model, batch):
    both_updates(model, batch)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_wrong_advantage_shows(model, groups, batch):
    model.set_attn_implementation("regrow")
    gradients = packed_update(model, batch).gradients
    swapped = make_batch([groups[0], groups[1].__class__(**{**vars(groups[1]), "rewards": [1.0, 0.0, 0.0]})])
    assert relative_l2(packed_update(model, swapped).gradients, gradients) > 0.1


def test_objective_counts_responses_only(batch):
    tree = batch.tree()
    assert not batch.objective().where(tree)[tree.position_ids < 8].any()
    assert [int(mask.nonzero()[0]) for mask in batch.response_masks] == batch.prompt_lengths


def test_the_ratio_is_clipped_on_the_side_that_gains():
    logp = torch.tensor([[1.5, 0.5], [1.5, 0.5]], dtype=torch.float64).log().requires_grad_()
    loss = grpo_sum(logp, torch.tensor([[1.0], [-1.0]], dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    loss.backward()
    assert loss.item() == pytest.approx(-((1 + CLIP) - 1.5 + 0.5 - (1 - CLIP)))
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, -0.5], [1.5, 0.0]], dtype=torch.float64))


def test_lifted_casts_lift_every_form():
    x = torch.ones(2, dtype=torch.float64)
    with LiftedCasts():
        casts = [x.float(), x.to(torch.float32), x.to(dtype=torch.bfloat16), torch.softmax(x, 0, dtype=torch.float32)]
    assert {cast.dtype for cast in casts} == {torch.float64}
    assert x.float().dtype == torch.float32
