"""Log-probabilities and entropies against the oracle, in every dtype and on every instruction set."""

from types import SimpleNamespace

import pytest
import torch

import regrow
from accuracy import assert_accurate
from regrow import reference
from regrow.logit_chunks import CHUNK_BYTES

ops = torch.ops.regrow

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# Less than a vector; tails of every kind of vector; more than one block of sums.
VOCABULARIES = [2, 5, 129, 1000, 4133]
OPTIONS = [(1.0, None), (0.7, None), (1.0, 30.0), (1.7, 5.0)]


def run(function, hidden, weight, *arguments, dlogp, dentropy, **options):
    """logp, entropy, dhidden, dweight"""
    hidden, weight = (x.detach().clone().requires_grad_() for x in (hidden, weight))
    logp, entropy = function(hidden, weight, *arguments, **options)
    loss = (logp * dlogp.to(logp.dtype)).sum() + (entropy * dentropy.to(logp.dtype)).sum()
    return logp, entropy, *torch.autograd.grad(loss, [hidden, weight])


def compare(function, plain_function, hidden, weight, *arguments, **options):
    ours = run(function, hidden, weight, *arguments, **options)
    plain = run(plain_function, hidden, weight, *arguments, **options)
    oracle = run(plain_function, hidden.double(), weight.double(), *arguments, **options)
    result_dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    assert [x.dtype for x in ours] == [result_dtype, result_dtype, hidden.dtype, weight.dtype]
    for what, per_row, x, y, z in zip(
        ("logp", "entropy", "dhidden", "dweight"), (False, False, True, True), ours, plain, oracle, strict=True
    ):
        assert_accurate(x, y, z, per_row=per_row, what=what)


def random_problem(dtype, num_rows, vocabulary, width, num_targets, generator):
    hidden = torch.randn(num_rows, width, dtype=torch.float64, generator=generator).to(dtype)
    weight = torch.randn(vocabulary, width, dtype=torch.float64, generator=generator).to(dtype)
    row = torch.randint(num_rows, (num_targets,), generator=generator)
    token = torch.randint(vocabulary, (num_targets,), generator=generator)
    dlogp = torch.randn(num_targets, dtype=torch.float64, generator=generator)
    dentropy = torch.randn(num_rows, dtype=torch.float64, generator=generator)
    return (hidden, weight, row, token), dict(dlogp=dlogp, dentropy=dentropy)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("temperature, softcap", OPTIONS)
def test_rows(isa, dtype, vocabulary, temperature, softcap, generator):
    arguments, options = random_problem(dtype, 9, vocabulary, 24, 20, generator)
    compare(
        regrow.row_logprobs, reference.row_logprobs, *arguments, **options, temperature=temperature, softcap=softcap
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_chunks(monkeypatch, dtype, generator):
    arguments, options = random_problem(dtype, 50, 300, 16, 200, generator)
    whole = run(regrow.row_logprobs, *arguments, **options)
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 7 * 300 * dtype.itemsize)
    compare(regrow.row_logprobs, reference.row_logprobs, *arguments, **options)
    assert torch.equal(run(regrow.row_logprobs, *arguments, **options)[0].argsort(), whole[0].argsort())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("temperature, softcap", OPTIONS)
def test_a_vocabulary_of_one_token_is_certain(isa, dtype, temperature, softcap, generator):
    arguments, options = random_problem(dtype, 9, 1, 24, 20, generator)
    results = run(regrow.row_logprobs, *arguments, **options, temperature=temperature, softcap=softcap)
    assert all(x.double().abs().max() < 1e-13 for x in results)


def make_tree(parent_index, tokens):
    return SimpleNamespace(parent_index=parent_index, tokens=tokens, num_tokens=parent_index.numel())


# Two roots, a fork of three, a leaf beside a chain; tokens in preorder. 9 and 2 repeat under one parent's children.
FOREST = make_tree(torch.tensor([-1, 0, 1, 2, 1, 1, 5, -1, 7]), torch.tensor([3, 1, 9, 2, 9, 2, 0, 8, 8]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("temperature, softcap", OPTIONS)
def test_tree(isa, dtype, temperature, softcap, generator):
    (hidden, weight, *_), options = random_problem(dtype, 9, 10, 24, 9, generator)

    def ours(hidden, weight, tree, **options):
        return regrow.tree_logprobs(hidden, weight, tree, return_entropy=True, **options)

    compare(ours, reference.tree_logprobs, hidden, weight, FOREST, **options, temperature=temperature, softcap=softcap)
    logp, entropy = ours(hidden, weight, FOREST)
    assert torch.equal(regrow.tree_logprobs(hidden, weight, FOREST), logp)
    assert (logp[[0, 7]] == 0).all() and (entropy[[0, 7]] == 0).all()
    assert entropy[2] == entropy[4] == entropy[5]
    assert logp[2] == logp[4], "both are token 9 under row 1"


def test_rows_that_predict_nothing_may_hold_anything(generator):
    (hidden, weight, *_), _ = random_problem(torch.float32, 9, 10, 24, 9, generator)
    leaves = [3, 4, 6, 8]
    clean = hidden.clone().requires_grad_()
    hidden[leaves] = torch.nan
    dirty, weights = hidden.requires_grad_(), [weight.clone().requires_grad_() for _ in range(2)]
    results = [regrow.tree_logprobs(h, w, FOREST) for h, w in zip((clean, dirty), weights, strict=True)]
    assert torch.equal(*results)
    for result in results:
        result.sum().backward()
    assert torch.equal(weights[0].grad, weights[1].grad)
    assert torch.equal(clean.grad, dirty.grad) and (dirty.grad[leaves] == 0).all()


def test_only_chosen_tokens_are_scored(generator):
    parent = torch.tensor([-1, 0, 1, 1, 0])
    tree = SimpleNamespace(parent_index=parent, tokens=torch.tensor([1, 2, 3, 4, 10]), num_tokens=5)
    weight, hidden = torch.randn(11, 8, generator=generator), torch.randn(5, 8, generator=generator)
    where = torch.tensor([True, False, True, True, False])  # a root has no log-prob, chosen or not
    whole, chosen = ((hidden.clone().requires_grad_(), weight.clone().requires_grad_()) for _ in range(2))
    expected = regrow.tree_logprobs(*whole, tree, return_entropy=True)
    result = regrow.tree_logprobs(*chosen, tree, where=where, return_entropy=True)
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs * where, rtol=1e-6, atol=1e-6)
    (expected[0] * where).sum().backward()
    result[0].sum().backward()
    for ours, theirs in zip(chosen, whole, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    hidden[[0, 2, 3, 4]] = float("nan")
    assert torch.equal(regrow.tree_logprobs(hidden, weight, tree, where=where), result[0])


def test_trees_of_nothing():
    for parents in ([], [-1], [-1, -1]):
        size = len(parents)
        tree = make_tree(torch.tensor(parents, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))
        hidden, weight = torch.randn(size, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
        logp, entropy = regrow.tree_logprobs(hidden, weight, tree, return_entropy=True)
        assert torch.equal(logp, torch.zeros(size)) and torch.equal(entropy, torch.zeros(size))
        (logp.sum() + entropy.sum()).backward()
        assert torch.equal(hidden.grad, torch.zeros(size, 4)) and torch.equal(weight.grad, torch.zeros(7, 4))


def logits_grad(logits, target_token, dlogp, dentropy=None, temperature=1.0, softcap=None):
    """The gradient of one target a row."""
    logits = logits.clone()
    lse, entropy = ops.logits_row_stats(logits, temperature, softcap)
    row_start = torch.arange(logits.size(0) + 1)
    ops.logits_row_grad_(logits, lse, entropy, row_start, target_token, dlogp, dentropy, temperature, softcap)
    return logits, entropy


def test_a_probability_near_one_keeps_its_gradient_in_bf16(isa):
    # p(target) = 0.999: the gradient of -logp is -0.001 there. Rounding p to bf16 first would give 0 or -0.0039.
    logits = torch.zeros(1, 100, dtype=torch.bfloat16)
    logits[0, 17] = torch.log(torch.tensor(999.0 * 99))
    expected = torch.softmax(logits.double(), -1)
    expected[0, 17] -= 1
    assert -1.5e-3 < expected[0, 17] < -0.5e-3
    grad, _ = logits_grad(logits, torch.tensor([17]), torch.tensor([-1.0]))
    torch.testing.assert_close(grad.double(), expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_masked_tokens_have_no_weight_and_no_gradient(isa, dtype, generator):
    logits = torch.randn(3, 70, dtype=torch.float64, generator=generator).to(dtype)
    masked = torch.rand(3, 70, generator=generator) < 0.5
    masked[:, 3] = False
    logits[masked] = -torch.inf
    total = torch.float64 if dtype == torch.float64 else torch.float32
    grad, entropy = logits_grad(logits, torch.tensor([3, 3, 3]), torch.ones(3, dtype=total), torch.ones(3, dtype=total))
    p = torch.softmax(logits.double(), -1)
    logp = torch.log_softmax(logits.double(), -1).masked_fill(masked, 0)
    expected = -(p * logp).sum(-1)
    torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-5)
    assert (grad[masked] == 0).all() and not grad.isnan().any()
    expected = -p * (1 + logp + expected[:, None])
    expected[:, 3] += 1
    assert_accurate(grad, expected.to(dtype), expected.masked_fill(masked, 0), per_row=True)


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_a_common_shift_costs_no_digits(isa, shift, generator):
    # Whole numbers, so that the shift itself is exact in fp32.
    dtype = torch.float32
    logits = torch.randint(-8, 9, (4, 333), generator=generator).to(dtype)
    token, dlogp = torch.tensor([0, 5, 331, 332]), torch.ones(4, dtype=dtype)
    results = []
    for x in (logits, logits + shift):
        lse, entropy = ops.logits_row_stats(x, 1.0, None)
        logp = ops.logits_pick(x, lse, torch.arange(4), token, 1.0, None)
        results.append((logp, entropy, logits_grad(x, token, dlogp, dlogp)[0]))
    for ours, shifted in zip(*results, strict=True):
        torch.testing.assert_close(shifted, ours, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_huge_and_tiny_logits(isa, softcap, size, generator):
    (hidden, weight, *targets), options = random_problem(torch.float32, 6, 200, 16, 12, generator)
    compare(regrow.row_logprobs, reference.row_logprobs, hidden * size, weight, *targets, **options, softcap=softcap)


def test_not_a_number_stays_in_its_row(isa):
    logits = torch.zeros(3, 50)
    logits[1, 7] = torch.nan
    lse, entropy = ops.logits_row_stats(logits, 1.0, None)
    assert lse.isnan().tolist() == entropy.isnan().tolist() == [False, True, False]
    grad, _ = logits_grad(logits, torch.tensor([7, 7, 7]), torch.ones(3))
    assert grad.isnan().all(1).tolist() == [False, True, False] and not grad[[0, 2]].isnan().any()


def test_rows_of_wider_logits(isa, generator):
    wide = torch.randn(5, 200, generator=generator)
    for left, right in zip(
        ops.logits_row_stats(wide[:, :77], 1.0, None),
        ops.logits_row_stats(wide[:, :77].clone(), 1.0, None),
        strict=True,
    ):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_for_any_number_of_threads(num_threads, dtype, generator):
    logits = torch.randn(67, 5003, generator=generator).to(dtype)
    row = torch.randint(67, (3000,), generator=generator)
    token = torch.randint(5003, (3000,), generator=generator)
    results = []
    for threads in (1, 2, 3):
        num_threads(threads)
        lse, entropy = ops.logits_row_stats(logits, 0.7, 20.0)
        logp = ops.logits_pick(logits, lse, row, token, 0.7, 20.0)
        grad, _ = logits_grad(logits, token[:67], logp[:67], entropy, 0.7, 20.0)
        results.append((lse, entropy, logp, grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_no_tensor_of_all_logits_exists():
    # 2 GiB of logits in fp32; the profiler counts every allocation by its sign.
    num_rows, vocabulary = 8192, 65536
    hidden, weight = torch.randn(num_rows, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    target = torch.zeros(num_rows, dtype=torch.int64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        logp, _ = regrow.row_logprobs(hidden, weight, target, target)
        logp.sum().backward()
    largest = max(event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    assert largest <= CHUNK_BYTES["cpu"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_public_log_probs_have_the_same_bits_for_any_number_of_threads(num_threads, dtype, generator):
    hidden, weight = (torch.randn(n, 72, generator=generator).to(dtype).requires_grad_() for n in (300, 700))
    row, token = torch.randint(300, (400,), generator=generator), torch.randint(700, (400,), generator=generator)
    results = []
    for threads in (1, 2, 3):
        num_threads(threads)
        logp, entropy = regrow.row_logprobs(hidden, weight, row, token)
        gradients = torch.autograd.grad(logp.sum() + entropy.sum(), (hidden, weight))
        results.append((logp, entropy, *gradients))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
