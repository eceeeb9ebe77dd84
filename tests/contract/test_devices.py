"""Which ops run on CUDA, and that each asks for its tensors on one device. No GPU is needed."""

import pytest
import torch

from op_arguments import ALL, IN_PYTHON, NATIVE, with_strays

ops = torch.ops.regrow
CPU, CUDA = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for key in ("CPU", "CUDA"))
OF_THE_CPU = {"cpu_isa", "register_loop"}


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


@pytest.mark.parametrize("name", NATIVE)
def test_registered_for_cuda(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"regrow::{name}", "CUDA")


def test_every_op_is_here():
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("regrow::")}
    assert names == {f"regrow::{name}" for name in {*ALL, *OF_THE_CPU}}
    for name in IN_PYTHON:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"regrow::{name}", "CompositeExplicitAutograd")


# Both keys have the same function, which looks at the tensors: so CUDA's works on the CPU's.
@pytest.mark.parametrize("name", NATIVE)
def test_one_function_serves_both_devices(name):
    on_cpu, on_cuda = (call(name, key, NATIVE[name]) for key in (CPU, CUDA))
    assert on_cpu
    for ours, other in zip(on_cuda, on_cpu, strict=True):
        assert torch.equal(ours, other)


# Past the dispatcher's choice: it looks at some of the arguments only. A meta tensor stands for any other device.
@pytest.mark.parametrize("name, stray", with_strays(NATIVE))
def test_all_on_one_device(name, stray):
    arguments = {k: v.to("meta") if k == stray else v for k, v in NATIVE[name].items()}
    with pytest.raises(
        ValueError, match=r"move them to one device with .to\(device\)|must be on the CPU or on CUDA"
    ) as e:
        call(name, CPU, arguments)
    assert stray in str(e.value)
