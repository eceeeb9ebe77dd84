"""Tree attention at real sizes against the fp64 oracle, on the device."""

from itertools import pairwise

import pytest
import torch

import regrow
from attention_cases import make_case
from device_cases import assert_forward, attend, place
from device_forms import FORMS, OPTIONS, drafts, each_half, group_tree
from named_trees import named_trees

pytestmark = pytest.mark.gpu


# Every configuration: a power of two, one padded to the next, V narrower than K, the largest.
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
# No GQA; groups that fill a tile of queries evenly and not.
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@each_half
def test_configurations(dtype, group, dims, device, size):
    case = make_case(group_tree(size), dtype=dtype, heads=(2 * group, 2), head_dim=dims[0], value_dim=dims[1])
    assert_forward(place(case, device))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
@each_half
def test_rectangles(dtype, form, options, device, size):
    tree = group_tree(size)
    chosen = {**OPTIONS[options], **FORMS[form](tree)}
    if chosen.get("partial"):
        chosen["sinks"] = False  # they join at the merge
    assert_forward(place(make_case(tree, dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128, **chosen), device))


@pytest.mark.parametrize("name", named_trees())
@each_half
def test_named_trees(dtype, name, device):
    assert_forward(place(make_case(named_trees()[name], dtype=dtype, head_dim=64, value_dim=64, sinks=True), device))


# Draft trees of single tokens behind contexts of their own: the queries of all sequences in one call.
@each_half
def test_verification(dtype, device, size):
    tree, queries = drafts(size)
    case = make_case(tree, dtype=dtype, heads=(32, 8), head_dim=128, value_dim=128, query_index=queries, sinks=True)
    assert_forward(place(case, device))


# Blocks of keys merged are the whole, the sink counted once.
@each_half
def test_merged_blocks(dtype, device, size):
    tree = group_tree(size)
    case = place(make_case(tree, dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128, sinks=True), device)
    bounds = [0, 1, size(1500, 20), size(5000, 60), tree.num_tokens]
    parts = [
        regrow.tree_attention(case.q, case.k[a:b], case.v[a:b], case.tree, key_start=a, partial=True)
        for a, b in pairwise(bounds)
    ]
    out, lse = regrow.lse_merge(*map(torch.stack, zip(*parts, strict=True)), case.sinks)
    assert_forward(case, {"out": out.to(dtype), "lse": lse.T})


@each_half
def test_unseen_keys_may_hold_nan(dtype, device, size):
    tree = group_tree(size)
    case = make_case(tree, dtype=dtype, heads=(4, 2), head_dim=128, value_dim=128, queries=(0, 30))
    case.k[30:], case.v[30:] = torch.nan, torch.nan
    ours = assert_forward(place(case, device))
    assert not any(result.isnan().any() for result in ours.values())


# Views with gaps between rows and heads, as a fused projection and a KV cache give them.
@each_half
def test_strides(dtype, device, size):
    case = place(make_case(group_tree(size), dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128), device)
    fused = torch.cat([case.q, case.k, case.v], 1)
    q, k, v = fused[:, :8], fused[:, 8:10], fused[:, 10:]
    cache = torch.stack([k, v]).permute(2, 1, 0, 3).contiguous()  # [heads, rows, 2, dim]
    expected = attend(case)
    for keys, values in ((k, v), (cache[:, :, 0].transpose(0, 1), cache[:, :, 1].transpose(0, 1))):
        out, lse = regrow.tree_attention(q, keys, values, case.tree, return_lse=True)
        assert torch.equal(out, expected["out"]) and torch.equal(lse.T, expected["lse"])


# Large scores: the softmax must not overflow, in fp16 neither.
@each_half
def test_large_scores(dtype, device, size):
    case = make_case(group_tree(size), dtype=dtype, heads=(4, 2), head_dim=128, value_dim=128, magnitude=8.0)
    assert_forward(place(case, device))
