import functools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import regrow
from policy import Policy, random_tree
from regrow import replay
from regrow.live_bytes import measure_bytes
from regrow.models import attach
from regrow.replay import probe
from regrow.replay.job import Job
from regrow.replay.ledger import Curve
from regrow.replay.probe import measure
from replay_objectives import Additive

PROMPT, GROUP, RESPONSE = 700, 4, 60


class SumOfResponses:
    def where(self, tree):
        return tree.position_ids >= PROMPT

    def on_tokens(self, logp, tree, entropy, index):
        return logp.sum() / 100


@pytest.fixture(scope="module")
def tree():
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(500, (PROMPT,), generator=generator)
    return regrow.PrefixTree.from_sequences(
        [torch.cat([prompt, torch.randint(500, (RESPONSE,), generator=generator)]) for _ in range(GROUP)]
    )


def make_model(dtype=torch.float32, *, tied=False, window=None):
    options = {} if window is None else dict(use_sliding_window=True, sliding_window=window, max_window_layers=0)
    config = AutoConfig.for_model(
        "qwen2", vocab_size=500, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=tied, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    return attach(AutoModelForCausalLM.from_config(config, dtype=dtype))


# A tied head holds its weight's gradient; 16-bit gradients have sums beside them; windows bound the workspace; a
# checkpoint holds little and computes much again; detached paths have no gradients.
MODELS = {
    "fp32": dict(),
    "bf16": dict(dtype=torch.bfloat16),
    "tied": dict(tied=True),
    "windowed": dict(window=100),
}


@pytest.mark.parametrize("prefix_grad", ["exact", "detached"])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_prediction_is_what_is_measured(tree, options, prefix_grad):
    model = make_model(**options)
    for chunk_tokens in (64, 256, 2000):
        model.zero_grad()
        options = dict(chunk_tokens=chunk_tokens, prefix_grad=prefix_grad)
        predicted = replay.predict(model, tree, SumOfResponses(), **options)
        run = functools.partial(replay.backward, model, tree, SumOfResponses(), **options)
        measured = measure_bytes(run)
        stats = measured.result.stats
        assert predicted.total == pytest.approx(measured.peak, rel=0.05)
        assert predicted.path_kv == stats.kv_bytes
        assert predicted.path_kv_gradients in (stats.kv_gradient_bytes, 0)  # 0: the peak comes before them


@pytest.mark.parametrize("chunk_tokens", [64, 256, 2000])
def test_prediction_with_gradient_checkpointing(tree, chunk_tokens):
    """The bound is looser: what one layer computes again is at its most for another length than was measured."""
    model = make_model().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    predicted = replay.predict(model, tree, SumOfResponses(), chunk_tokens=chunk_tokens)
    measured = measure_bytes(lambda: replay.backward(model, tree, SumOfResponses(), chunk_tokens=chunk_tokens))
    assert predicted.total == pytest.approx(measured.peak, rel=0.12)


def test_gradients_that_are_there_are_set_aside_and_counted(tree):
    model = make_model()
    fresh = replay.predict(model, tree, SumOfResponses(), chunk_tokens=64)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    size = sum(p.nbytes for p in model.parameters())
    atomic = replay.predict(model, tree, SumOfResponses(), chunk_tokens=64)
    added = replay.predict(model, tree, SumOfResponses(), chunk_tokens=64, atomic=False)
    assert (fresh.gradients, fresh.kept_gradients) == (size, 0)
    assert (atomic.gradients, atomic.kept_gradients) == (size, size)
    assert (added.gradients, added.kept_gradients) == (0, 0)
    assert added.total == fresh.total - size
    assert all((p.grad == 1).all() for p in model.parameters())


def test_budget_is_kept_and_used(tree):
    model = make_model()
    chunks = []
    for budget_bytes in (4_000_000, 16_000_000):
        result = replay.backward(model, tree, SumOfResponses(), budget_bytes=budget_bytes)
        model.zero_grad()
        chunks.append(result.stats.chunk_tokens)
        options = dict(chunk_tokens=result.stats.chunk_tokens)
        measured = measure_bytes(lambda options=options: replay.backward(model, tree, SumOfResponses(), **options))
        model.zero_grad()
        assert measured.peak <= 1.05 * budget_bytes
        one_more = dict(chunk_tokens=chunks[-1] + 1)
        if chunks[-1] < tree.num_tokens:
            assert replay.predict(model, tree, SumOfResponses(), **one_more).total > budget_bytes
    assert chunks == sorted(chunks) and chunks[0] < chunks[-1]


def chunk_of_values(model, tree, budget_bytes):
    return Job.of_values(model, tree, None).chunk_tokens(None, budget_bytes)


def test_budget_of_values_alone(tree):
    model = make_model()
    peaks, values = [], []
    for budget_bytes in (2_500_000, 1 << 40):
        chunk_tokens = chunk_of_values(model, tree, budget_bytes)
        run = functools.partial(replay.logprobs, model, tree, chunk_tokens=chunk_tokens)
        measured = measure_bytes(run)
        peaks.append(measured.peak)
        values.append(replay.logprobs(model, tree, budget_bytes=budget_bytes))
    assert peaks[0] <= 1.05 * 2_500_000 < peaks[1]
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk_tokens", [64, 2000])
def test_prediction_of_values_alone(tree, chunk_tokens):
    """Its head's weight has no gradient, and hooks on gradients are none of its business."""
    model = make_model()
    for parameter in model.parameters():
        parameter.register_hook(lambda _: pytest.fail("back-propagated"))
    predicted = replay.predict(model, tree, chunk_tokens=chunk_tokens).total
    measured = measure_bytes(lambda: replay.logprobs(model, tree, chunk_tokens=chunk_tokens))
    assert predicted == pytest.approx(measured.peak, rel=0.05)


def test_a_model_is_measured_once_for_each_mode(monkeypatch):
    policy, tree = Policy(), random_tree([-1, 0, 0], [6, 4, 5])
    measured = []
    monkeypatch.setattr(probe, "measure", lambda *mode: measured.append(mode[-2:]) or measure(*mode))
    for _ in range(2):
        replay.logprobs(policy, tree, budget_bytes=1 << 40)
        for prefix_grad in ("exact", "detached"):
            replay.backward(policy, tree, Additive(tree), budget_bytes=1 << 40, prefix_grad=prefix_grad)
    assert measured == [(False, False), (True, True), (True, False)]


def test_budget_below_the_least_names_it(tree):
    model = make_model()
    with pytest.raises(ValueError, match=r"budget_bytes is 1,000, and the least that works is predicted as [\d,]+"):
        replay.backward(model, tree, SumOfResponses(), budget_bytes=1000)
    assert all(p.grad is None for p in model.parameters())


def test_one_segment_may_fit_where_several_do_not():
    """Parameters outweigh all else, and of one segment 16-bit gradients take half the bytes."""
    policy, tree = Policy().bfloat16(), random_tree([-1, 0, 0], [6, 4, 5])
    whole = replay.predict(policy, tree, Additive(tree), chunk_tokens=15).total
    assert whole < min(replay.predict(policy, tree, Additive(tree), chunk_tokens=n).total for n in range(1, 15))
    assert replay.backward(policy, tree, Additive(tree), budget_bytes=whole).stats.segments == 1
    with pytest.raises(ValueError, match=f"the least that works is predicted as {whole:,}"):
        replay.backward(policy, tree, Additive(tree), budget_bytes=whole - 1)


def test_a_running_profiler_is_refused(tree):
    model = make_model()
    with torch.profiler.profile(), pytest.raises(RuntimeError, match="profiler, and one is running: stop it first"):
        replay.predict(model, tree, SumOfResponses())


def test_ledger_of_an_empty_tree():
    empty = regrow.PrefixTree.from_nodes([], [], [])
    assert replay.predict(make_model(), empty, chunk_tokens=8).total == 0


def test_a_curve_goes_through_what_was_measured_and_on():
    curve = Curve(((1, 100), (10, 190), (20, 490)))
    assert [curve.at(n) for n in (1, 4, 10, 15, 20, 30)] == [100, 130, 190, 340, 490, 790]
    assert Curve(((5, 50),)).at(5) == 50
