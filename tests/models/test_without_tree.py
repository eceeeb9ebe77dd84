"""Without tree=, a model behaves as under SDPA, bit for bit; and as under eager where SDPA cannot run it."""

import types

import pytest
import torch

import regrow.models
from model_families import FAMILIES, make_model
from regrow.models.hook import attention
from regrow.models.mask import LazyMask

# SDPA has no argument for softcap (Gemma 2) and sinks (gpt-oss).
EAGER_ONLY = ("gemma2", "gpt-oss")
LEFT = torch.tensor([[0, 0, 5, 6, 7, 8], [0, 9, 4, 5, 6, 7], [3, 9, 4, 5, 6, 7]])
RIGHT = torch.tensor([[5, 6, 7, 8, 0, 0], [9, 4, 5, 6, 7, 0], [3, 9, 4, 5, 6, 7]])


def on_both(family, run):
    """run(model) under the implementation that transformers would choose, and under regrow's."""
    peer = "eager" if family in EAGER_ONLY else "sdpa"
    results = []
    for implementation in (peer, "regrow"):
        model = make_model(family, dtype=torch.float32, implementation=implementation)
        assert model.config._attn_implementation == implementation
        results.append(run(model))
    return results


@pytest.mark.parametrize("ids", [LEFT, RIGHT, LEFT[2:]], ids=["left", "right", "unpadded"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_generate_and_logits(family, ids):
    mask = (ids != 0).long()

    def run(model):
        generated = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=6,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return generated.sequences, *generated.logits, model(ids, attention_mask=mask).logits[mask.bool()]

    theirs, ours = on_both(family, run)
    for expected, actual in zip(theirs, ours, strict=True):
        assert torch.equal(actual, expected)


# Masks made ahead as tensors, one per type of layer or one in all.
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("new_tokens", [1, 4])
@torch.no_grad()
def test_generate_with_a_static_cache(family, new_tokens):
    def run(model):
        return model.generate(
            LEFT, attention_mask=(LEFT != 0).long(), max_new_tokens=new_tokens, do_sample=False,
            cache_implementation="static", disable_compile=True,
        )  # fmt: skip

    theirs, ours = on_both(family, run)
    assert torch.equal(ours, theirs)


PACKED_POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2]])
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
HOLE = CAUSAL.clone()
HOLE[3, 1] = False
ADDITIVE = torch.zeros(6, 6).masked_fill(~HOLE, float("-inf"))


# What else transformers understands without a tree: packed rows, and masks of the caller's own. Eager would add a
# boolean mask as the numbers 0 and 1, so Gemma 2 has no peer there.
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"position_ids": PACKED_POSITIONS}),
        ("gemma2", {"position_ids": PACKED_POSITIONS}),
        ("llama", {"attention_mask": HOLE[None, None]}),
        ("llama", {"attention_mask": ADDITIVE[None, None]}),
        ("gemma2", {"attention_mask": ADDITIVE[None, None]}),
    ],
)
@torch.no_grad()
def test_other_calls(family, options):
    theirs, ours = on_both(family, lambda model: model(LEFT[2:], **options).logits)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_training(family):
    def run(model):
        model.train()(LEFT, attention_mask=(LEFT != 0).long(), labels=LEFT.masked_fill(LEFT == 0, -100)).loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    theirs, ours = on_both(family, run)
    assert torch.equal(ours, theirs)


def test_attached_models_too():
    model = make_model("llama", dtype=torch.float32, implementation="sdpa")
    options = {"attention_mask": (LEFT != 0).long(), "max_new_tokens": 4, "do_sample": False}
    expected = model.generate(LEFT, **options)
    assert torch.equal(regrow.models.attach(model).generate(LEFT, **options), expected)


def test_softcap_without_an_eager_attention_is_refused():
    query = torch.zeros(1, 2, 3, 8)
    with pytest.raises(
        ValueError, match="SimpleNamespace has softcap or sinks, which SDPA cannot run, and no eager_att"
    ):
        attention(types.SimpleNamespace(), query, query, query, None, softcap=5.0)


def test_a_mask_is_made_once_per_forward(monkeypatch):
    made = []
    dense = LazyMask.dense.func
    monkeypatch.setattr(LazyMask, "dense", property(lambda mask: made.append(mask) or dense(mask)))
    model = make_model("llama", dtype=torch.float32, implementation="regrow", num_hidden_layers=3)
    model(LEFT, attention_mask=(LEFT != 0).long())
    assert len(made) == 3 and len(set(map(id, made))) == 1  # one object, which caches what is a plain property here
