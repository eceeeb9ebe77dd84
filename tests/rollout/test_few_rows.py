"""Linear layers of steps with few rows: which take the product of ours, and that nothing of it stays."""

import pytest
import torch
from torch import nn

from regrow.rollout import generate
from regrow.rollout import linears as module
from regrow.rollout.linears import MAX_ROWS, ModelForward
from tiny_policy import TinyPolicy


class Rows:
    def __init__(self, num_tokens):
        self.num_tokens = num_tokens


class Watching(nn.Module):
    """Follows the protocol as far as a step's forward goes, and says which of its layers had a forward of ours."""

    def __init__(self, **layers):
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def replay_hidden(self, step):
        return {name for name, layer in self.layers.items() if "forward" in getattr(layer, "__dict__", ())}


@pytest.fixture
def calls(monkeypatch):
    """Rows of each product of ours."""
    rows = []

    def counted(x, *rest, right=module.skinny_linear):
        rows.append(len(x))
        return right(x, *rest)

    monkeypatch.setattr(module, "skinny_linear", counted)
    return rows


def test_steps_of_few_rows_and_no_others(calls):
    policy = TinyPolicy()
    rollout = generate(policy, [[1] * (MAX_ROWS + 1)], MAX_ROWS, max_new_tokens=4, seed=0)
    assert calls.count(MAX_ROWS) == 4 * 3 and calls.count(1) == 4  # decoding, and the shapes' token; no prefill
    assert len(calls) == 4 * 4
    calls.clear()
    generate(policy, [[1] * (MAX_ROWS + 1)], MAX_ROWS + 1, max_new_tokens=4, seed=0)
    assert calls == [1] * 4
    assert not any("forward" in layer.__dict__ for layer in policy.modules())
    assert rollout.stats.tokens == 4 * MAX_ROWS


def test_sequences_are_those_of_torch_s_products(calls, monkeypatch):
    def texts():
        rollout = generate(TinyPolicy(), [[1, 2], [3]], 3, max_new_tokens=30, seed=5)
        return [s.tolist() for s in rollout.sequences], torch.cat(rollout.logprobs)

    ours, logprobs = texts()
    assert calls
    monkeypatch.setattr(module, "MAX_ROWS", 0)
    calls.clear()
    theirs, expected = texts()
    assert not calls and ours == theirs
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)


def test_only_plain_layers_are_replaced():
    class Other(nn.Linear):
        pass

    own = nn.Linear(2, 2)
    own.forward = lambda x: x
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    watching = Watching(
        plain=nn.Linear(2, 2), fp16=nn.Linear(2, 2).half(), own=own, other=Other(2, 2), normed=normed,
        meta=nn.Linear(2, 2, device="meta"), norm=nn.LayerNorm(2),
    )  # fmt: skip
    forward = ModelForward(watching)
    assert forward(Rows(MAX_ROWS)) == {"plain", "fp16", "own"}
    assert len(forward.forwards) == 2 and own.forward(3) == 3
    assert forward(Rows(MAX_ROWS + 1)) == {"own"}


def test_a_compiled_model_is_left_alone():
    watching = Watching(plain=nn.Linear(2, 2))
    watching.layers["plain"].compile(backend="eager")
    assert ModelForward(watching)(Rows(1)) == set()
    assert ModelForward(Watching(whole=torch.compile(nn.Linear(2, 2), backend="eager"))).forwards == []


def test_autocast_is_left_to_torch():
    forward = ModelForward(Watching(plain=nn.Linear(2, 2)))
    with torch.autocast("cpu", torch.bfloat16):
        assert forward(Rows(1)) == set()
    assert forward(Rows(1)) == {"plain"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_stays_after_an_error(error):
    class Failing(Watching):
        def replay_hidden(self, step):
            raise error

    failing = Failing(plain=nn.Linear(2, 2))
    with pytest.raises(error):
        ModelForward(failing)(Rows(1))
    assert "forward" not in failing.layers["plain"].__dict__


def test_hooks_still_run():
    policy, seen = TinyPolicy(), []
    policy.layers[0].qkv.register_forward_hook(lambda *_: seen.append(1))
    generate(policy, [[1]], 1, max_new_tokens=3, seed=0)
    assert len(seen) == 1 + 1 + 2
