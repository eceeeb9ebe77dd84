"""Which ops run on CUDA, and that each asks for its tensors on one device. No GPU is needed."""

import pytest
import torch

import regrow  # noqa: F401

ops = torch.ops.regrow
CPU, CUDA = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for key in ("CPU", "CUDA"))

LOGITS = torch.randn(5, 8)
LSE, ENTROPY = ops.logits_row_stats(LOGITS, 1.0, None)
INDEX = torch.tensor([4, 0, 4])
OUTS, LSES = torch.randn(2, 5, 3, 4), torch.randn(2, 3, 5)

# op -> its arguments by name.
ON_CUDA = {
    "lse_merge": {"outs": OUTS, "lses": LSES, "sinks": torch.randn(3)},
    "replay_gather": {"src": LOGITS, "index": INDEX},
    "replay_gather_out": {"src": LOGITS, "index": INDEX, "out": torch.zeros(3, 8)},
    "replay_scatter": {"src": LOGITS[:3], "index": INDEX, "num_rows": 5},
    "replay_scatter_out": {"src": LOGITS[:3], "index": INDEX, "out": torch.zeros(5, 8)},
    "logits_row_stats": {"logits": LOGITS, "temperature": 1.0, "softcap": None},
    "logits_pick": {
        "logits": LOGITS, "lse": LSE, "target_row": INDEX, "target_token": INDEX, "temperature": 1.0, "softcap": None,
    },
    "head_logits_out": {"hidden": LOGITS, "weight": torch.randn(7, 8), "out": torch.zeros(5, 7)},
    "lse_merge_bwd": {
        "dout": OUTS[0], "dlse": LSES[0], "outs": OUTS, "lses": LSES, "sinks": torch.randn(3), "out": OUTS[0],
        "lse": LSES[0],
    },
    "head_logits_bwd": {
        "dlogits": torch.randn(5, 7), "hidden": LOGITS, "weight": torch.randn(7, 8), "dhidden": torch.zeros(5, 8),
        "dweight": torch.zeros(7, 8),
    },
    "logits_row_grad_": {
        "logits": LOGITS, "lse": LSE, "entropy": ENTROPY, "row_start": torch.tensor([0, 1, 1, 1, 1, 2]),
        "target_token": INDEX[:2], "dlogp": torch.randn(2), "dentropy": torch.randn(5), "temperature": 1.0,
        "softcap": None,
    },
}  # fmt: skip


def call(name, key, arguments):
    """The op's kernel of one dispatch key, whatever its tensors are: results, then the tensors that it wrote into."""
    op = getattr(ops, name).default
    written = [
        argument.name for argument in op._schema.arguments if argument.alias_info and argument.alias_info.is_write
    ]
    arguments = {k: v.clone() if k in written else v for k, v in arguments.items()}
    result = op.redispatch(key, *arguments.values())
    results = result if isinstance(result, tuple) else (result,)
    return [x for x in (*results, *(arguments[name] for name in written)) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", ON_CUDA)
def test_registered_for_cuda(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"regrow::{name}", "CUDA")


# In Python, over the others: one function for every device.
IN_PYTHON = {"row_logprobs", "row_logprobs_bwd", "tree_logprobs", "tree_logprobs_bwd", "add_matmul_"}
ATTENTION = {"tree_attention_fwd", "tree_attention_bwd", "tree_attention_bwd_accum"}
OF_THE_CPU = {"cpu_isa", "register_loop"}


def test_every_op_is_here():
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("regrow::")}
    assert names == {f"regrow::{name}" for name in {*ON_CUDA, *IN_PYTHON, *ATTENTION, *OF_THE_CPU}}
    for name in IN_PYTHON:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"regrow::{name}", "CompositeExplicitAutograd")


# Both keys have the same function, which looks at the tensors: so CUDA's works on the CPU's.
@pytest.mark.parametrize("name", ON_CUDA)
def test_one_function_serves_both_devices(name):
    on_cpu, on_cuda = (call(name, key, ON_CUDA[name]) for key in (CPU, CUDA))
    assert on_cpu
    for ours, other in zip(on_cuda, on_cpu, strict=True):
        assert torch.equal(ours, other)


# Past the dispatcher's choice: it looks at some of the arguments only. A meta tensor stands for any other device.
STRAYS = [
    (name, stray)
    for name, arguments in ON_CUDA.items()
    for stray, value in arguments.items()
    if isinstance(value, torch.Tensor)
]


@pytest.mark.parametrize("name, stray", STRAYS)
def test_all_on_one_device(name, stray):
    arguments = {k: v.to("meta") if k == stray else v for k, v in ON_CUDA[name].items()}
    with pytest.raises(
        ValueError, match=r"move them to one device with .to\(device\)|must be on the CPU or on CUDA"
    ) as e:
        call(name, CPU, arguments)
    assert stray in str(e.value)
