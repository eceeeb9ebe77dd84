"""The emulator gives what the GPU gives: the same kernels on the same inputs, equal where nothing rounds differently.

Copies and sums in order are equal bit by bit; `exp`, `log` and tensor cores round in their own ways, so there both are
within a few ulp of each other, relative to the largest value.
"""

import pytest
import torch

import emulator_module
import regrow
from attention_cases import make_case
from device_cases import attend, place
from named_trees import conversation, grpo_group, single_tokens
from regrow._load import _C

pytestmark = pytest.mark.gpu

SIXTEEN_BIT = (torch.bfloat16, torch.float16)
ULPS = 16


@pytest.fixture(scope="module")
def emulator():
    return emulator_module.load()


def to_numpy(x):
    return (x.view(torch.uint16) if x.dtype in SIXTEEN_BIT else x).numpy()


def to_torch(array, dtype):
    return torch.from_numpy(array).view(dtype)


def name(dtype):
    return str(dtype).removeprefix("torch.")


def assert_near(emulated, ours, unit=None):
    """`unit`: 16 ulp of the largest value by default."""
    ours = ours.cpu()
    assert emulated.dtype == ours.dtype and emulated.shape == ours.shape
    unit = ULPS * torch.finfo(ours.dtype).eps if unit is None else unit
    bound = unit * float(ours[ours.isfinite()].abs().max())
    torch.testing.assert_close(emulated, ours, rtol=0, atol=bound, equal_nan=True)


@pytest.mark.parametrize("width", [64, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_lse_merge(dtype, width, device, emulator, generator):
    outs = torch.randn(3, 5, 4, width, dtype=dtype, generator=generator)
    lses = 4 * torch.randn(3, 4, 5, dtype=dtype, generator=generator)
    lses[lses < -3] = -torch.inf
    sinks = torch.randn(4, dtype=dtype, generator=generator)
    arrays = [to_numpy(x) for x in (outs, lses, sinks)]
    *emulated, _ = emulator.lse_merge(*arrays, name(dtype), emulator.Options())
    ours = regrow.lse_merge(outs.to(device), lses.to(device), sinks.to(device))
    for x, y in zip(emulated, ours, strict=True):
        assert_near(torch.from_numpy(x), y)


@pytest.mark.parametrize("dtype, width", [(torch.bfloat16, 64), (torch.float32, 3), (torch.uint8, 13)], ids=str)
def test_replay_gather(dtype, width, device, emulator, generator):
    src = torch.randint(0, 100, (11, width), generator=generator).to(dtype)
    index = torch.randint(11, (19,), generator=generator)
    emulated, _ = emulator.replay_gather(to_numpy(src), index.numpy(), emulator.Options())
    assert torch.equal(to_torch(emulated, dtype), regrow.replay_gather(src.to(device), index.to(device)).cpu())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *SIXTEEN_BIT, torch.int32], ids=name)
@pytest.mark.parametrize("width", [1, 130])
def test_replay_scatter(dtype, width, device, emulator, generator):
    src = (50 * torch.randn(40, width, generator=generator)).to(dtype)
    index = torch.randint(7, (40,), generator=generator)
    emulated, _ = emulator.replay_scatter(to_numpy(src), index.numpy(), 7, name(dtype), emulator.Options())
    ours = regrow.replay_scatter(src.to(device), index.to(device), 7).cpu()
    assert torch.equal(to_torch(emulated, dtype), ours)


@pytest.mark.parametrize("vocabulary", [517, 4160])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *SIXTEEN_BIT], ids=name)
def test_logits(vocabulary, softcap, dtype, device, emulator, generator):
    logits = (5 * torch.randn(3, vocabulary, generator=generator)).to(dtype)
    row, token = torch.randint(3, (50,), generator=generator), torch.randint(vocabulary, (50,), generator=generator)
    targets = (row.numpy(), token.numpy(), name(dtype), 0.7, softcap or 0.0)
    *emulated, _ = emulator.logits(to_numpy(logits), *targets, emulator.Options())
    on_device = logits.to(device)
    lse, entropy = torch.ops.regrow.logits_row_stats(on_device, 0.7, softcap)
    logp = torch.ops.regrow.logits_pick(on_device, lse, row.to(device), token.to(device), 0.7, softcap)
    # fp64 results of fp32 sums: compared at what they were summed in.
    summed = torch.float64 if dtype == torch.float64 else torch.float32
    for x, y in zip(emulated, (lse, entropy, logp), strict=True):
        assert_near(torch.from_numpy(x).to(summed), y.to(summed))


def emulated_attention(emulator, case, compute_capability, multiprocessors):
    """{"out", "lse"} as device_cases.attend names them, with the plan of such a chip."""
    tree, index, options = case.tree, case.options.get("query_index"), case.options
    index = None if index is None else index.numpy()
    places = options.get("query_start", 0), options["key_start"]
    axis = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy()
    window, head_dim = options.get("window") or 0, max(case.q.size(2), case.v.size(2))
    rows, plan = _C.build_cuda_plan(
        *axis, index, places[0], case.q.size(0), places[1], case.k.size(0), window, case.q.size(1), case.k.size(1),
        head_dim, compute_capability, multiprocessors,
    )  # fmt: skip
    out, lse, _ = emulator.tree_attention(
        *(to_numpy(x) for x in (case.q, case.k, case.v)), *axis, plan, rows, multiprocessors, index, *places,
        case.q.size(2) ** -0.5, window, options.get("softcap") or 0.0,
        None if case.sinks is None else case.sinks.float().numpy(), case.partial, name(case.dtype), emulator.Options(),
    )  # fmt: skip
    return {"out": to_torch(out, torch.float32 if case.partial else case.dtype), "lse": torch.from_numpy(lse).T}


CASES = {
    "group": lambda dtype: make_case(grpo_group(), dtype=dtype, heads=(4, 2), head_dim=64, value_dim=64, sinks=True),
    "options": lambda dtype: make_case(
        conversation(), dtype=dtype, heads=(3, 1), head_dim=96, value_dim=128, window=20, softcap=5.0
    ),
    "drafts": lambda dtype: make_case(
        single_tokens(), dtype=dtype, heads=(8, 2), head_dim=128, value_dim=128, query_index=torch.tensor([3, 9, 63])
    ),
    "partial": lambda dtype: make_case(
        grpo_group(), dtype=dtype, heads=(2, 2), head_dim=256, value_dim=256, keys=(5, 60), partial=True
    ),
}


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=name)
@pytest.mark.parametrize("case", CASES)
def test_attention(case, dtype, device, emulator):
    case = CASES[case](dtype)
    chip = 90, 132
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        chip = 10 * properties.major + properties.minor, properties.multi_processor_count
    emulated, ours = emulated_attention(emulator, case, *chip), attend(place(case, device))
    assert_near(emulated["lse"], ours["lse"])
    assert_near(emulated["out"], ours["out"], unit=2 * torch.finfo(dtype).eps)  # weights are rounded to it
