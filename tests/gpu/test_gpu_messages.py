"""Indices out of range: the host cannot look at them without waiting, so the device says what is wrong.

A failed assertion ends the CUDA context, hence a process for each.
"""

import re
import subprocess
import sys

import pytest
import torch

import regrow

pytestmark = pytest.mark.gpu

BEGIN = """
import torch, regrow
device = "{device}"
rows, zeros = torch.zeros(4, 8, device=device), torch.zeros(4, dtype=torch.int64, device=device)
def index(value):
    return torch.tensor([0, 3, value, 1], device=device)
lse = torch.zeros(4, dtype=torch.float64, device=device)
"""
END = """
if device == "cuda":
    torch.cuda.synchronize()
print("nobody noticed")
"""
# Argument -> the call that must say so.
CALLS = {
    "index of gather": "regrow.replay_gather(rows, index({value}))",
    "index of scatter": "regrow.replay_scatter(rows, index({value}), 4)",
    "target_row": "torch.ops.regrow.logits_pick(rows[:, :4].contiguous(), lse, index({value}), zeros, 1.0, None)",
    "target_token": "torch.ops.regrow.logits_pick(rows[:, :4].contiguous(), lse, zeros, index({value}), 1.0, None)",
    "target_token of a gradient": (
        "torch.ops.regrow.logits_row_grad_(rows[:, :4].contiguous(), lse, lse.float(), torch.arange(5, device=device), "
        "index({value}), lse.float(), None, 1.0, None)"
    ),
}


@pytest.mark.parametrize("value", [-1, 4])
@pytest.mark.parametrize("argument", CALLS)
def test_index_out_of_range(argument, value, device):
    code = BEGIN.format(device=device.type) + CALLS[argument].format(value=value) + END
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode != 0 and "nobody noticed" not in result.stdout
    name, said = argument.split()[0], result.stderr
    if device.type == "cuda":
        # The kernel's own words, from the device, and then torch's error at the next call that looks.
        assert re.search(rf"{name} must be in \[0, .*look at {name}\.min\(\)", said), said
        assert "device-side assert triggered" in said, said
    else:
        assert re.search(rf"ValueError: {name}\[2\] is {value}", said), said


# What no kernel computes is refused by name, on the host.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_attention_of_other_dtypes(dtype, only_gpu):
    tree = regrow.PrefixTree.from_nodes([-1], [8]).to(only_gpu)
    q = torch.zeros(8, 2, 64, dtype=dtype, device=only_gpu)
    with pytest.raises(ValueError, match="bfloat16"):
        regrow.tree_attention(q, q, q, tree)
