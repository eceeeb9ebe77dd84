"""Log-probs and entropies of 1,024 rows under SmolLM2's head (width 576, vocabulary 49,152), against plain torch.

`matmul` is the ceiling: the matmuls that the work cannot do without (one forward; four with a recomputing backward).
"""

import pytest
import torch

import regrow
from regrow import reference

NUM_ROWS, WIDTH, VOCABULARY = 1024, 576, 49152

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def problem(dtype, num_rows, vocabulary):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_rows, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, WIDTH, generator=generator).mul_(0.1).to(dtype).requires_grad_()
    row = torch.arange(num_rows)
    return hidden, weight, row, torch.randint(vocabulary, (num_rows,), generator=generator)


def plain_torch(hidden, weight, row, token, **options):
    return reference.row_logprobs(hidden, weight, row, token, **options)


def matmul(hidden, weight, row, token, **options):
    logits = hidden @ weight.T
    return logits[:, 0], logits[:, 0]


def forward(function, arguments):
    with torch.no_grad():
        return function(*arguments, temperature=0.7)


def forward_backward(function, arguments):
    hidden, weight = arguments[:2]
    if function is matmul:
        with torch.no_grad():
            logits = hidden @ weight.T
            torch.mm(hidden, weight.T, out=logits)
            return logits @ weight, logits.T @ hidden
    logp, entropy = function(*arguments, temperature=0.7)
    return torch.autograd.grad(logp.sum() + entropy.sum(), [hidden, weight])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("step", [forward, forward_backward], ids=lambda f: f.__name__)
@pytest.mark.parametrize("implementation", [regrow.row_logprobs, plain_torch, matmul], ids=lambda f: f.__name__)
def test_row_logprobs(benchmark, dtype, step, implementation):
    if implementation is regrow.row_logprobs:
        small = problem(dtype, 32, 1000)
        ours = step(implementation, small)
        expected = step(plain_torch, tuple(x.detach().double().requires_grad_() for x in small[:2]) + small[2:])
        tolerance = 4e-2 if dtype == torch.bfloat16 else 1e-4
        for x, y in zip(ours, expected, strict=True):
            assert (x.double() - y).norm() <= tolerance * y.norm()
    arguments = problem(dtype, NUM_ROWS, VOCABULARY)
    benchmark.group = f"{step.__name__} {dtype}".replace("torch.", "")
    benchmark.pedantic(step, args=(implementation, arguments), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("kernel", ["row_stats", "row_grad", "log_softmax"])
def test_row_kernels(benchmark, dtype, softcap, kernel):
    ops, num_rows = torch.ops.regrow, 256
    logits = torch.randn(num_rows, VOCABULARY).to(dtype)
    lse, entropy = ops.logits_row_stats(logits, 1.0, softcap)
    capped = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    torch.testing.assert_close(lse, capped.logsumexp(-1), rtol=1e-6, atol=1e-6)
    row_start, token, dlogp = torch.arange(num_rows + 1), torch.randint(VOCABULARY, (num_rows,)), torch.ones(num_rows)

    def peer():
        x = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return torch.log_softmax(x, -1)

    kernels = {
        "row_stats": lambda: ops.logits_row_stats(logits, 1.0, softcap),
        # In place: later rounds see gradients instead of logits, at the same cost.
        "row_grad": lambda: ops.logits_row_grad_(logits, lse, entropy, row_start, token, dlogp, entropy, 1.0, softcap),
        "log_softmax": peer,
    }
    benchmark.group = f"row kernels {dtype} softcap {softcap}".replace("torch.", "")
    benchmark.pedantic(kernels[kernel], rounds=20, warmup_rounds=2)
    if benchmark.stats:
        benchmark.extra_info["ns_per_logit"] = benchmark.stats["median"] * 1e9 / logits.numel()
