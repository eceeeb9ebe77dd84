"""The emulator gives what the GPU gives: the same kernels on the same inputs, equal where nothing rounds differently.

Copies and sums in order are equal bit by bit; `exp`, `log` and tensor cores round in their own ways, so there both are
within a few ulp of each other, relative to the largest value.
"""

import pytest
import torch

import emulator_module
import regrow
from attention_cases import make_case, run_regrow
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


class EmulatedAttention:
    """A case in the emulator, with the plan of such a chip; results by name, as device_cases has them."""

    def __init__(self, emulator, case, compute_capability, multiprocessors):
        self.emulator, self.case, self.multiprocessors = emulator, case, multiprocessors
        tree, options, index = case.tree, case.options, case.options.get("query_index")
        places = options.get("query_start", 0), options["key_start"]
        self.axis = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy()
        index, window = None if index is None else index.numpy(), options.get("window") or 0
        self.rows, self.plan = _C.build_cuda_plan(
            *self.axis, index, places[0], case.q.size(0), places[1], case.k.size(0), window, case.q.size(1),
            case.k.size(1), max(case.q.size(2), case.v.size(2)), compute_capability, multiprocessors,
        )  # fmt: skip
        self.operands = [to_numpy(x) for x in (case.q, case.k, case.v)]
        sinks = None if case.sinks is None else case.sinks.float().numpy()
        self.options = index, *places, case.q.size(2) ** -0.5, window, options.get("softcap") or 0.0, sinks

    def forward(self):
        out, lse, _ = self.emulator.tree_attention(
            *self.operands, *self.axis, self.plan, self.rows, self.multiprocessors, *self.options, self.case.partial,
            name(self.case.dtype), self.emulator.Options(),
        )  # fmt: skip
        out = to_torch(out, torch.float32 if self.case.partial else self.case.dtype)
        return {"out": out, "lse": torch.from_numpy(lse).T}

    def backward(self, out, lse):
        """fp32, of these results of the forward."""
        case = self.case
        dout = case.dout.to(out.dtype)
        sums = [torch.zeros(x.shape).numpy() for x in (case.q, case.k, case.v)]
        *gradients, dsinks, _ = self.emulator.tree_attention_backward(
            *self.operands, to_numpy(out), to_numpy(dout), lse.T.contiguous().numpy(), case.dlse.float().numpy(),
            *self.axis, self.plan, self.multiprocessors, *self.options, to_numpy(case.dout), *sums, name(case.dtype),
            self.emulator.Options(),
        )  # fmt: skip
        named = zip(("dq", "dk", "dv", "dsinks"), (*gradients, dsinks), strict=True)
        return {name: torch.from_numpy(x) for name, x in named if x.size}


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
    emulated, ours = EmulatedAttention(emulator, case, *chip_of(device)).forward(), attend(place(case, device))
    assert_near(emulated["lse"], ours["lse"])
    assert_near(emulated["out"], ours["out"], unit=2 * torch.finfo(dtype).eps)  # weights are rounded to it


def chip_of(device):
    """(compute capability, multiprocessors)"""
    if device.type != "cuda":
        return 90, 132
    properties = torch.cuda.get_device_properties(device)
    return 10 * properties.major + properties.minor, properties.multi_processor_count


# From the device's own out and lse: what differs is the backward's.
@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=name)
@pytest.mark.parametrize("case", CASES)
def test_attention_backward(case, dtype, device, emulator):
    case = CASES[case](dtype)
    ours = run_regrow(place(case, device))
    given = {name: ours[name].cpu() for name in ("out", "lse")}
    emulated = EmulatedAttention(emulator, case, *chip_of(device)).backward(**given)
    assert emulated.keys() == ours.keys() - given.keys()
    for gradient, result in emulated.items():
        # Weights and their gradients are rounded, in dq and dk both.
        assert_near(result.to(ours[gradient].dtype), ours[gradient], unit=8 * torch.finfo(dtype).eps)
