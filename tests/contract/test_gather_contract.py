"""What replay_gather and replay_scatter promise besides numbers: errors, registration, compilation."""

import pytest
import torch

import regrow

ops = torch.ops.regrow
SRC, INDEX = torch.randn(5, 3), torch.tensor([4, 0, 4])


def raises(match, function, *arguments, **options):
    with pytest.raises(ValueError, match=match):
        function(*arguments, **options)


@pytest.mark.parametrize("bad", [5, -1, 2**62, -(2**63)])
def test_index_out_of_range_is_named_and_nothing_is_written(bad):
    index = torch.tensor([4, bad, 0, -7])
    message = rf"index\[1\] is {bad}, but there are 5 rows: the valid range is 0 to 4"
    out = torch.full((4, 3), 9.0)
    raises(message, regrow.replay_gather, SRC, index)
    raises(message, regrow.replay_gather, SRC, index, out=out)
    assert (out == 9).all()
    out = torch.full((5, 3), 9.0)
    raises(message, regrow.replay_scatter, torch.randn(4, 3), index, 5)
    raises(message, regrow.replay_scatter, torch.randn(4, 3), index, 5, out=out)
    assert (out == 9).all()


def test_index_into_nothing():
    raises(r"index\[0\] is 0, but there are 0 rows", regrow.replay_gather, SRC[:0], INDEX[1:])


def test_messages():
    gather, scatter = regrow.replay_gather, regrow.replay_scatter
    raises("index must be a 1-D int64 tensor, got another dtype of shape .3.", gather, SRC, INDEX.int())
    raises("index must be a 1-D int64 tensor, got int64 of shape .1, 3.", gather, SRC, INDEX[None])
    raises("src must have at least one dimension", gather, torch.tensor(1.0), INDEX)
    raises("src must have at least one dimension", scatter, torch.tensor(1.0), INDEX, 3)
    raises("src has 5 rows, index has 3 entries", scatter, SRC, INDEX, 5)
    raises("num_rows is -1", scatter, SRC[:3], INDEX, -1)
    for src in (SRC.bool(), SRC.to(torch.complex64)):
        raises("cannot sum: bool or complex.*view_as_real", scatter, src[:3], INDEX, 5)


def test_out_messages():
    for function, *arguments, rows in [
        (regrow.replay_gather, SRC, INDEX, 3),
        (regrow.replay_scatter, SRC[:3], INDEX, 5, 5),
    ]:
        shape = rf"out has shape \[{rows}, 4\], but the result has shape \[{rows}, 3\]"
        raises(shape, function, *arguments, out=torch.empty(rows, 4))
        dtype = "contiguous tensor of the dtype and device of src"
        raises(dtype, function, *arguments, out=torch.empty(rows, 3, dtype=torch.float64))
        raises(dtype, function, *arguments, out=torch.empty(3, rows).T)
    raises(r"out has shape \[4, 3\]", regrow.replay_gather, SRC, INDEX, out=torch.empty(4, 3))
    raises("out has 4 rows, num_rows is 5", regrow.replay_scatter, SRC[:3], INDEX, 5, out=torch.empty(4, 3))
    raises("out must have at least one dim", regrow.replay_scatter, SRC[:3], INDEX, 5, out=torch.empty(()))


def test_out_must_not_share_memory():
    memory = torch.zeros(8, 3)
    raises("out shares memory with src", regrow.replay_gather, memory[:5], INDEX, out=memory[4:7])
    raises("out shares memory with src", regrow.replay_scatter, memory[:3], INDEX, 5, out=memory[2:7])
    index = torch.zeros(3, dtype=torch.int64)
    raises("out shares memory with index", regrow.replay_gather, torch.zeros(5, dtype=torch.int64), index, out=index)
    regrow.replay_gather(memory[:5], INDEX, out=memory[5:])  # beside it is fine


@pytest.mark.parametrize("argument", ["src", "out"])
def test_out_has_no_gradient(argument):
    src = SRC.clone().requires_grad_(argument == "src")
    for call, rows in [
        (lambda out: regrow.replay_gather(src, INDEX, out=out), 3),
        (lambda out: regrow.replay_scatter(src[:3], INDEX, 5, out=out), 5),
    ]:
        out = torch.empty(rows, 3).requires_grad_(argument == "out")
        raises(rf"\(out=...\) has no gradient, but {argument} requires one", call, out)
        with torch.no_grad():
            assert call(out) is out


def test_opcheck():
    for requires_grad in (False, True):
        src = SRC.clone().requires_grad_(requires_grad)
        torch.library.opcheck(ops.replay_gather.default, (src, INDEX))
        torch.library.opcheck(ops.replay_scatter.default, (src[:3].detach().requires_grad_(requires_grad), INDEX, 5))
    torch.library.opcheck(ops.replay_gather_out.default, (SRC, INDEX, torch.zeros(3, 3)))
    torch.library.opcheck(ops.replay_scatter_out.default, (SRC[:3], INDEX, torch.zeros(5, 3)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def there_and_back(src, index):
        rows = regrow.replay_gather(src * 2, index)
        return regrow.replay_scatter(rows.sin(), index, src.size(0)).sum()

    compiled = torch.compile(there_and_back, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    src = SRC.clone().requires_grad_()
    expected = torch.autograd.grad(there_and_back(src, INDEX), src)
    torch.testing.assert_close(torch.autograd.grad(compiled(src, INDEX), src), expected)


def test_compile_with_out():
    def fill(src, index, out):
        return regrow.replay_gather(src, index, out=out) + 1

    out = torch.zeros(3, 3)
    result = torch.compile(fill, fullgraph=True, backend="aot_eager")(SRC, INDEX, out)
    assert torch.equal(out, SRC[INDEX]) and torch.equal(result, out + 1)


def test_unknown_instruction_set():
    raises("this machine runs .*baseline, not z80", ops.cpu_isa, "z80")
