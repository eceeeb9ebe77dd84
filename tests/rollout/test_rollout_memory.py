"""Keys and values: what a formula predicts, what windows free, and what fits a budget."""

import math
import re

import pytest
import torch

from guesses import Guesses
from regrow.rollout import Strategy, generate
from regrow.rollout.axis import Axis
from regrow.rollout.cache import ROOM, Cache
from regrow.rollout.memory import container_bytes
from regrow.rollout.prompts import Prompts
from tiny_policy import HEAD_DIM, TinyPolicy

VOCABULARY = 11
TOKEN_BYTES = 2 * HEAD_DIM * 8  # of one layer: key and value of one head, fp64
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9], [4]]
WINDOWS = (3, 5)


def texts(rollout):
    return [sequence.tolist() for sequence in rollout.sequences]


@pytest.fixture
def layings(monkeypatch):
    """Counts how often an axis is laid out anew."""
    calls, lay_out = [], Axis._lay_out
    monkeypatch.setattr(Axis, "_lay_out", lambda axis, kept: (calls.append(len(kept)), lay_out(axis, kept)))
    return calls


def without_freeing(monkeypatch):
    monkeypatch.setattr(
        Cache, "visible", lambda cache, window, places: torch.ones(cache.layout.capacity).bool().numpy()
    )


@pytest.mark.parametrize("max_batch", [None, 4])
def test_without_windows_the_prediction_is_exact(max_batch):
    rollout = generate(TinyPolicy(VOCABULARY), PROMPTS, 4, max_new_tokens=20, seed=0, max_batch=max_batch)
    # The trie, and a slice for each that runs at once.
    predicted = 2 * TOKEN_BYTES * (Prompts(PROMPTS).num_tokens + (max_batch or 12) * 20)
    assert rollout.stats.predicted_kv_bytes == predicted
    # A prompt that all have ended with has gone; at least one is there.
    assert predicted - 2 * TOKEN_BYTES * 20 <= rollout.stats.kv_bytes <= predicted
    if max_batch is None:
        assert rollout.stats.kv_bytes == predicted


def test_windows_of_all_layers_bound_the_memory(layings):
    kept = {}
    for new_tokens in (150, 450):
        rollout = generate(TinyPolicy(VOCABULARY, WINDOWS), PROMPTS, max_new_tokens=new_tokens, seed=0)
        kept[new_tokens] = rollout.stats
        bound = sum(Prompts(PROMPTS).num_tokens + 3 * (window + ROOM) for window in WINDOWS)
        assert rollout.stats.kv_bytes <= bound * TOKEN_BYTES
        assert rollout.stats.kv_bytes <= rollout.stats.predicted_kv_bytes
        # The last tokens, by the model alone.
        for text, logprobs in zip(texts(rollout), rollout.logprobs, strict=True):
            rows = TinyPolicy(VOCABULARY, WINDOWS).logits_alone(text)[-new_tokens - 1 : -1].log_softmax(-1)
            torch.testing.assert_close(rows.gather(1, torch.tensor(text[-new_tokens:])[:, None])[:, 0], logprobs)
    assert kept[150].kv_bytes == kept[450].kv_bytes
    assert kept[450].predicted_kv_bytes < 2 * TOKEN_BYTES * 3 * 450
    assert len(layings) > 2 * (150 + 450) // (2 * ROOM)


def test_a_window_no_sequence_leaves_is_none(layings):
    rollout = generate(TinyPolicy(VOCABULARY, (40, 41)), [[1, 2, 3]], 2, max_new_tokens=37, seed=0)
    assert len(layings) == 1 and rollout.stats.kv_bytes == 2 * TOKEN_BYTES * (3 + 2 * 37)


@pytest.mark.parametrize("windows", [WINDOWS, (None, 1), (70, 6, None)])
@pytest.mark.parametrize("ways", [{}, dict(max_batch=2), dict(trees=(4, 2, 9)), dict(trees=(3, 3, 30), max_batch=4)])
def test_freeing_changes_nothing(windows, ways, layings, monkeypatch):
    model = TinyPolicy(VOCABULARY, windows)
    # Some end early, and their slices go to siblings; most run over several layings.
    options = dict(max_new_tokens=130, seed=1, stop=[[7, 7]], temperature=4.0)
    ways = dict(ways)
    trees = ways.pop("trees", None)
    with monkeypatch.context() as patched:
        without_freeing(patched)
        whole = generate(model, PROMPTS, 3, **options)
    lengths = sorted(map(len, whole.sequences))
    assert lengths[0] < 90 and lengths[-1] > 130
    if trees:
        ways |= dict(drafter=Guesses(texts(whole), 0, VOCABULARY), strategy=Strategy(*trees))
    layings.clear()
    rollout = generate(model, PROMPTS, 3, **options, **ways)
    assert texts(rollout) == texts(whole) and len(layings) > 2
    for one, other in zip(rollout.logprobs, whole.logprobs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert rollout.stats.kv_bytes < whole.stats.kv_bytes
    assert rollout.stats.kv_bytes <= rollout.stats.predicted_kv_bytes
    assert not trees or rollout.stats.accepted > 100


def test_long_prompts_are_filled_in_pieces(layings, monkeypatch):
    monkeypatch.setattr("regrow.rollout.cache.PREFILL_TOKENS", 16)
    beginning = [token % 7 for token in range(50)]
    prompts = [beginning + [8] * 30, [*beginning, 9, 10], beginning]
    model = TinyPolicy(VOCABULARY, (3, None, 20))
    pieces = generate(model, prompts, 2, max_new_tokens=8, seed=0, max_batch=3, return_hidden=True)
    monkeypatch.undo()
    whole = generate(model, prompts, 2, max_new_tokens=8, seed=0, return_hidden=True)
    assert texts(pieces) == texts(whole)
    torch.testing.assert_close(pieces.hidden, whole.hidden, rtol=0, atol=1e-12)
    assert pieces.stats.rows == whole.stats.rows


def forget_one_more(visible):
    def patched(cache, window, places):
        return visible(cache, window and window - 1, places)

    return patched


def test_freeing_too_much_is_caught(layings, monkeypatch):
    monkeypatch.setattr(Cache, "visible", forget_one_more(Cache.visible))
    with pytest.raises(AssertionError):
        test_freeing_changes_nothing(WINDOWS, {}, layings, monkeypatch)


# ---- Budgets ----


@pytest.mark.parametrize("windows", [(None, None), (None, 3)])
@pytest.mark.parametrize("share", [0.2, 0.45, 0.8])
def test_the_batch_that_the_message_names_fits(windows, share):
    model = TinyPolicy(VOCABULARY, windows)
    prompts = [[first, second, 5, 5] for first in range(6) for second in range(2)]

    def roll(**options):
        return generate(model, prompts, 3, max_new_tokens=12, seed=0, **options)

    whole = roll()
    needed = whole.stats.predicted_kv_bytes
    budget = int(share * needed)
    message = rf"of 36 sequences at once need {needed:,} bytes, and {budget:,} are there: max_batch=(\d+) fits"
    with pytest.raises(ValueError, match=message) as error:
        roll(budget_bytes=budget)
    fits = int(re.search(r"max_batch=(\d+)", str(error.value))[1])
    rollout = roll(budget_bytes=budget, max_batch=fits)
    assert texts(rollout) == texts(whole) and rollout.stats.kv_bytes <= rollout.stats.predicted_kv_bytes <= budget
    with pytest.raises(ValueError, match=f"of {fits + 1} sequences at once"):
        roll(budget_bytes=budget, max_batch=fits + 1)
    assert texts(roll(budget_bytes=needed)) == texts(whole)
    with pytest.raises(ValueError, match="max_batch="):
        roll(budget_bytes=needed - 1)


def test_nothing_fits():
    model, one = TinyPolicy(VOCABULARY), 2 * TOKEN_BYTES * (3 + 9)
    assert generate(model, [[1, 2, 3]], max_new_tokens=9, budget_bytes=one).stats.kv_bytes == one
    for options, needed in (({}, 2 * TOKEN_BYTES * (3 + 4 * 9)), (dict(max_batch=1), one)):
        message = f"need {needed:,} bytes, and 100 are there: one alone needs {one:,}; or shorten max_new_tokens"
        with pytest.raises(ValueError, match=message):
            generate(model, [[1, 2, 3]], 4, max_new_tokens=9, budget_bytes=100, **options)


def test_a_container_may_have_less_than_the_machine(tmp_path):
    assert container_bytes(tmp_path) == math.inf
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300\n")
    assert container_bytes(tmp_path) == math.inf
    (tmp_path / "memory.max").write_text("1000\n")
    assert container_bytes(tmp_path) == 700


def test_a_window_that_changes_is_refused():
    class Widening(TinyPolicy):
        def replay_hidden(self, segment):
            if segment.num_tokens > 1:
                self.layers[1].window = 4
            return super().replay_hidden(segment)

    with pytest.raises(RuntimeError, match="a layer has a window of 4, and none had in the model's first run"):
        generate(Widening(VOCABULARY, (None, 3)), [[1, 2, 3]], max_new_tokens=9)
