"""A packed tree yields what its sequences yield one by one under eager attention, in fp64, for every family."""

import peft
import pytest
import torch

import regrow.models
from lifted_casts import LiftedCasts, recompute_lifted
from model_families import FAMILIES, alone, gradients, make_model, make_tree, relative_l2

LIMIT = 1e-12


def weights(tree):
    """Of each token of each sequence, of both signs: nothing cancels, and a shared token counts differently in each."""
    return torch.randn(tree.gather_index.size(0), dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def alone_by_eager(model, tree):
    """logits, log-probs and gradients of the weighted sum of log-probs."""
    model.set_attn_implementation("eager")
    logits, logp = alone(model)
    (logp * weights(tree)).sum().backward()
    return logits.detach(), logp.detach(), gradients(model)


def packed_by_regrow(model, tree):
    with LiftedCasts():
        logits = tree.unpack(regrow.models.packed(model, tree).logits[0]).detach()
        logp = tree.unpack(regrow.models.logprobs(model, tree))
    (logp * weights(tree)).sum().backward()
    return logits, logp.detach(), gradients(model)


def assert_equal(actual, expected):
    for name, ours, theirs in zip(("logits", "logp"), actual, expected, strict=False):
        assert relative_l2(ours, theirs) <= LIMIT, name
    assert actual[2].keys() == expected[2].keys()
    errors = {name: relative_l2(actual[2][name], gradient) for name, gradient in expected[2].items()}
    assert {name: error for name, error in errors.items() if not error <= LIMIT} == {}
    assert all(gradient.norm() > 0 for gradient in expected[2].values())  # nothing is compared with nothing


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_is_each_sequence_alone(family):
    model, tree = make_model(family), make_tree()
    expected = alone_by_eager(model, tree)
    regrow.models.attach(model)
    assert_equal(packed_by_regrow(model, tree), expected)

    model.train().activation_checkpointing_enable({"use_reentrant": False, "context_fn": recompute_lifted})
    assert_equal(packed_by_regrow(model, tree), expected)


@pytest.mark.parametrize("family", ["llama-tied", "gemma2", "deepseek-v3"])
def test_lora(family):
    config = peft.LoraConfig(target_modules=r".*self_attn\.(q|k|o|kv_b)_proj", init_lora_weights=False)
    model, tree = peft.get_peft_model(make_model(family), config).double(), make_tree()
    expected = alone_by_eager(model, tree)
    assert expected[2] and all("lora" in name for name in expected[2])
    regrow.models.attach(model)
    assert_equal(packed_by_regrow(model, tree), expected)
