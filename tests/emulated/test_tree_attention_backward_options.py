"""The backward's options and shapes: window, softcap, sinks, dlse, scale; head groups, head dims, strides, dtypes."""

import itertools

import pytest
import torch

from attention_cases import make_case
from backward_runs import compare, forward, on_cpu, rounding_apart
from named_trees import comb, conversation, grpo_group
from regrow import PrefixTree

SMALL = {"heads": (2, 1), "head_dim": 64, "value_dim": 64}
DIMS = pytest.mark.parametrize("head_dim", [64, 256])

# Each alone and all together: a window that leaves the trunk behind, a softcap that bends, sinks.
OPTIONS = [
    {name: value for name, value in zip(("window", "softcap", "sinks"), values, strict=True) if value}
    for values in itertools.product((None, 30), (None, 1.5), (False, True))
]


@DIMS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_alone_and_together(options, head_dim, backward):
    shape = {"heads": (1, 1), "head_dim": head_dim, "value_dim": head_dim}
    backward().check(make_case(grpo_group(num_responses=4), dtype=torch.bfloat16, **shape, **options))


# Of one key; of a few, so that in a key tile some keys fall out between two that stay; one less and one more than the
# longest path; full tiles behind the window.
@pytest.mark.parametrize("window", [1, 2, 40, 61, 62, 2**31])
def test_windows_with_holes(window, backward):
    tree = PrefixTree.from_nodes([-1, 0, 0, 0], [32, 30, 60, 30])  # the last branch sees keys 0..31 and 122..151
    case = make_case(tree, dtype=torch.float16, window=window, queries=(122, 152), **SMALL)
    backward().check_once(case, turn=window % 6)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_without_a_gradient_of_lse(partial, sinks, backward):
    case = make_case(conversation(), dtype=torch.bfloat16, sinks=sinks and not partial, partial=partial, **SMALL)
    runner, given = backward(), forward(case)
    ours = runner.run(case, given, dlse=False)
    case.dlse.zero_()
    assert all(torch.equal(x, ours[name]) for name, x in runner.once(case, given).items())
    compare(case, ours, given)


# The sign of a scale turns the order of scores around; 0 makes them equal; the last is 0 in fp32.
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("scale", [-0.125, 0.0, 1e-50])
def test_scales(scale, softcap, backward):
    options = {"scale": scale, "softcap": softcap, "sinks": True}
    backward().check_once(make_case(conversation(), dtype=torch.bfloat16, **SMALL, **options), turn=int(scale != 0))


# 1e4 saturates the softmax and, with a softcap, tanh; 1e-4 leaves it flat and tanh in its linear part.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("score", [1e4, 1e-4])
def test_huge_and_tiny_scores(score, softcap, dtype, backward):
    options = {"scale": 64**-0.5, "softcap": softcap, "sinks": True}
    case = make_case(comb(depth=8), dtype=dtype, magnitude=score**0.5, **SMALL, **options)
    ours = backward().check_once(case, turn=3)
    assert all(gradient.isfinite().all() for gradient in ours.values())


# (query heads, KV heads): groups that divide the 64 rows, and not; as large as the tile; larger by a divisor (48 of
# 96), larger with none (67: one head a unit); with several KV heads.
HEADS = [(3, 3), (3, 1), (6, 2), (7, 1), (14, 2), (32, 1), (64, 1), (96, 1), (67, 1), (192, 2)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_head_groups(heads, backward):
    """Of a group beyond a tile's rows, each unit walks the query tiles with the same keys."""
    queries = (60, 78) if heads[0] < 64 else (70, 72)
    case = make_case(conversation(), dtype=torch.bfloat16, **SMALL | {"heads": heads}, sinks=True, queries=queries)
    runner = backward()
    (runner.check if heads[0] < 67 else runner.check_once)(case)


@pytest.mark.parametrize("heads", [(96, 1), (4, 2)], ids=str)
def test_head_groups_of_shared_keys(heads, backward):
    """Where pairs of warps share 16 keys."""
    shape = {"heads": heads, "head_dim": 256, "value_dim": 256, "queries": (70, 72)}
    backward().check(make_case(conversation(), dtype=torch.float16, sinks=True, **shape))


# (head dim, value dim): narrower than their table entry; one narrower than the other, either way, and by more than a
# whole warp of columns; one 16-byte chunk.
HEAD_DIMS = [
    (72, 72), (96, 40), (40, 96), (192, 128), (128, 192), (8, 8), (8, 256), (256, 8), (120, 88), (48, 16), (136, 256)
]  # fmt: skip


@pytest.mark.parametrize("head_dim, value_dim", HEAD_DIMS)
def test_head_dims(head_dim, value_dim, backward):
    shape = {"heads": (2, 1), "head_dim": head_dim, "value_dim": value_dim, "queries": (40, 78)}
    case = make_case(conversation(), dtype=torch.bfloat16, partial=head_dim % 16 == 0, **shape)
    backward().check_once(case, turn=head_dim // 8)


def _spread(x, heads_first):
    """The same values, rows or heads apart; what lies between is NaN."""
    rows, heads, dim = x.shape
    step = 16 // x.element_size()
    if heads_first:
        wide = torch.full((heads, rows + 3, dim + step), torch.nan, dtype=x.dtype)
        view = wide[:, 2 : rows + 2, :dim].transpose(0, 1)
    else:
        wide = torch.full((rows, heads + 2, dim + 2 * step), torch.nan, dtype=x.dtype)
        view = wide[:, 1 : heads + 1, step : dim + step]
    assert not view.is_contiguous()
    return view.copy_(x)


@DIMS
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_strided_inputs(heads_first, partial, head_dim, backward):
    """Rows apart, as of a fused projection, or heads apart; out and dout each in a layout of its own."""
    shape = {"heads": (4, 2), "head_dim": head_dim, "value_dim": head_dim - 24, "queries": (50, 78)}
    case = make_case(conversation(), dtype=torch.bfloat16, partial=partial, **shape)
    if partial:
        case.dout = case.dout.float()
    runner, given = backward(), forward(case)
    contiguous = runner.once(case, given)
    for name in ("q", "k", "v", "dout"):
        setattr(case, name, _spread(getattr(case, name), heads_first))
    given["out"] = _spread(given["out"], not heads_first)
    strided = runner.run(case, given)
    assert all(torch.equal(strided[name], contiguous[name]) for name in contiguous)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_gradient_in_fp32_reaches_delta_unrounded(dtype, backward):
    """The products take it in the inputs' dtype; delta takes what there is, of a result in fp32 or not."""
    for partial in (False, True):
        case = make_case(conversation(), dtype=dtype, partial=partial, **SMALL)
        runner, given = backward(), forward(case)
        narrow = runner.once(case, given)
        generator = torch.Generator().manual_seed(1)
        noise = torch.rand(case.dout.shape, generator=generator) - 0.5
        fine = case.dout.float() * (1 + 0.3 * torch.finfo(dtype).eps * noise)
        assert torch.equal(fine.to(dtype), case.dout)
        case.dout = fine
        ours = runner.run(case, given)
        assert torch.equal(ours["dv"], narrow["dv"]) and not torch.equal(ours["dq"], narrow["dq"])
        # The CPU's products take fp32 where they can: it gets the rounded gradient, and what delta would lose by dlse.
        case.dout = fine.to(dtype)
        case.dlse = case.dlse + ((case.dout.float() - fine) * given["out"].float()).sum(2).T
        cpu = on_cpu(case, given)
        for name, bound in rounding_apart(case, given).items():
            assert ((ours[name] - cpu[name]).abs() <= 2 * bound).all(), name
