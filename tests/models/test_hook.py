"""What reaches the op, and that no mask of T x T is built on the way."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regrow.models
from model_families import make_model, make_tree
from regrow import PrefixTree
from regrow.models.hook import attention
from regrow.models.mask import LazyMask

POSITIONS = make_tree().position_ids[None]


@pytest.fixture
def seen(monkeypatch):
    """The arguments of the last call of the op, which returns v."""
    arguments = {}

    def record(q, k, v, tree, **options):
        arguments.update(q=q, k=k, v=v, **options)
        return v.repeat_interleave(q.size(1) // k.size(1), 1)

    monkeypatch.setattr(regrow, "tree_attention", record)
    return arguments


def test_options_reach_the_op(tree, seen):
    query, key, sinks = torch.randn(1, 4, 22, 8), torch.randn(1, 2, 22, 8), torch.zeros(4)
    mask = LazyMask(local_size=3)
    # The layer's own window is for implementations without masks: eager attention sees the mask's only.
    options = {"scaling": 0.5, "softcap": 9.0, "s_aux": sinks, "sliding_window": 7, "position_ids": POSITIONS}
    out, weights = attention(None, query, key, key, mask, tree=tree, **options)
    assert {name: seen[name] for name in ("scale", "window", "softcap", "sinks")} == {
        "scale": 0.5, "window": 3, "softcap": 9.0, "sinks": sinks
    }  # fmt: skip
    assert torch.equal(seen["q"], query[0].transpose(0, 1)) and seen["q"].data_ptr() == query.data_ptr()
    assert out.shape == (1, 22, 4, 8) and weights is None


def test_heads_are_filled_up_to_multiples_of_8(tree, seen):
    query, value = torch.randn(1, 2, 22, 12), torch.randn(1, 2, 22, 6)
    out, _ = attention(None, query, query, value, LazyMask(), tree=tree, position_ids=POSITIONS)
    assert seen["q"].shape == (22, 2, 16) and not seen["k"][..., 12:].any() and seen["v"].shape == (22, 2, 8)
    assert seen["scale"] == 12**-0.5
    assert torch.equal(out, value.transpose(1, 2))


def test_heads_that_do_not_lie_together_are_copied(tree, seen):
    query = torch.randn(1, 2, 8, 22).transpose(2, 3)
    attention(None, query, query, query, LazyMask(), tree=tree, position_ids=POSITIONS)
    assert seen["q"].stride(-1) == 1 and torch.equal(seen["q"], query[0].transpose(0, 1))


# Autocast leaves queries and keys in fp32 after the rotary embedding, and values in bf16.
def test_mixed_dtypes_follow_the_values(tree, seen):
    query = torch.randn(1, 2, 22, 8)
    attention(None, query, query, query.bfloat16(), LazyMask(), tree=tree, position_ids=POSITIONS)
    assert {seen[name].dtype for name in "qkv"} == {torch.bfloat16}


def test_heads_too_wide_are_refused_by_the_op(tree):
    query = torch.randn(1, 1, 22, 264)
    with pytest.raises(ValueError, match="head dim of q and k must be a multiple of 8 up to 256, got 264"):
        attention(None, query, query, query, LazyMask(), tree=tree, position_ids=POSITIONS)


class LargestTensor(TorchDispatchMode):
    """The largest number of elements of any tensor that an operator returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        self.numel = max([self.numel, *(x.numel() for x in outputs if isinstance(x, torch.Tensor))])
        return result


def test_the_measure_sees_a_mask():
    with LargestTensor() as largest:
        make_model("llama", dtype=torch.float32, implementation="sdpa")(POSITIONS, position_ids=POSITIONS)
    assert largest.numel >= 22 * 22  # jumps in positions make transformers build a mask, which broadcasts over heads


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_no_mask_is_built(monkeypatch, family):
    def built(*arguments, **options):
        raise AssertionError("a mask was built")

    tree = PrefixTree.from_nodes([-1] + [0] * 195, [500] + [100] * 195, torch.arange(20_000) % 64)
    assert tree.num_tokens == 20_000
    for name in ("sdpa_mask", "eager_mask"):
        monkeypatch.setattr(f"transformers.masking_utils.{name}", built)
    monkeypatch.setattr("regrow.models.mask.sdpa_mask", built)
    model = regrow.models.attach(make_model(family, dtype=torch.float32))
    with LargestTensor() as largest:
        regrow.models.logprobs(model, tree).sum().backward()
    assert largest.numel <= tree.num_tokens * 64  # the widest activation, and a row's logits in a chunk
