"""Models that break the protocol are noticed and named."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regrow.models
import regrow.replay
from model_families import gradients, make_model, make_tree, relative_l2
from policy import Policy, random_tree
from regrow.replay.path import Path
from regrow.replay.run import Run
from regrow.replay.schedule import Segment
from replay_objectives import Additive, Coupled


@pytest.fixture
def tree():
    return random_tree([-1, 0, 0], [6, 4, 5])


def broken(text, error=RuntimeError):
    return pytest.raises(error, match=text)


def replay(policy, tree, chunk_tokens=4, **options):
    return regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=chunk_tokens, **options)


class Noisy(Policy):
    """Adds noise of this size to its first layer's input."""

    noise = 0.5

    def hidden(self, tokens, position_ids, attend):
        def disturbed(layer, q, k, v, **options):
            return attend(layer, q, k + self.noise * torch.randn_like(k), v, **options)

        return super().hidden(tokens, position_ids, disturbed)


def test_noise(tree):
    with broken(
        r"tokens 10 to 11 were run twice, and their keys and values differ by .* of their norm: the model is not "
        r"deterministic \(dropout, noise, a state of its own\).*switch that off, or use prefix_grad='detached'"
    ):
        replay(Noisy(), tree)
    replay(Noisy(), tree, prefix_grad="detached")
    replay(Noisy(), tree, chunk_tokens=64)  # nothing runs twice


def test_noise_as_small_as_rounding_is_counted(tree):
    policy = Noisy()
    policy.noise = 1e-9
    stats = replay(policy, tree).stats
    assert stats.compared_elements == 2 * stats.differing_elements > 0  # the keys, and not the values


class NoisyCheckpoints(Noisy):
    """What its checkpoints compute again has other noise."""

    def hidden(self, tokens, position_ids, attend):
        def run(_):
            return super(NoisyCheckpoints, self).hidden(tokens, position_ids, attend)

        needs_gradient = torch.zeros(1, requires_grad=True)
        return checkpoint(run, needs_gradient, use_reentrant=True, preserve_rng_state=False)


def test_noise_in_checkpoints(tree):
    """Noticed for a segment that runs once, too, whose keys are then computed twice."""
    with broken("tokens 0 to 15 were run twice"):
        replay(NoisyCheckpoints(), tree, chunk_tokens=64)
    with broken("tokens 0 to 3 were run twice.*use prefix_grad='detached' without checkpoints"):
        replay(NoisyCheckpoints(), tree, prefix_grad="detached")


class Shifting(Policy):
    """A state of its own: its last hidden states grow with every run."""

    runs = 0

    def hidden(self, *arguments):
        self.runs += 1
        return super().hidden(*arguments) * 1.01**self.runs


def test_noise_behind_the_last_layer_is_in_no_key(tree):
    """What cannot be noticed: the gradient is then that of the second run."""
    assert replay(Shifting(), tree).stats.differing_elements == 0


class OneKey(Policy):
    """Its layers give one key for all."""

    def hidden(self, tokens, position_ids, attend):
        return super().hidden(tokens, position_ids, lambda layer, *qkv, **options: attend("layer", *qkv, **options))


def test_two_layers_with_one_key(tree):
    for chunk_tokens in (4, 64):
        with broken("layer 'layer' attended twice in one run, .*give each call its own key in attend"):
            replay(OneKey(), tree, chunk_tokens)
        with broken("attended twice"):
            regrow.replay.logprobs(OneKey(), tree, chunk_tokens=chunk_tokens)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_rows_of_other_tokens(tree, name):
    """One row would be broadcast to all keys, or taken for the first query."""

    class OneRow(Policy):
        def hidden(self, tokens, position_ids, attend):
            def short(layer, q, k, v, **options):
                rows = {"q": q, "k": k, "v": v}
                return attend(layer, **rows | {name: rows[name][-1:]}, **options).expand(len(q), -1, -1)

            return super().hidden(tokens, position_ids, short)

    with broken(rf"{name} has shape \[1, ., 8\], the segment has 15 tokens: give all of them", ValueError):
        replay(OneRow(), tree, chunk_tokens=64)


class Growing(Policy):
    """Keys, then values, of another width or dtype from the second run on."""

    change, runs = None, 0

    def hidden(self, tokens, position_ids, attend):
        self.runs += 1

        def changed(layer, q, k, v, **options):
            return attend(layer, *(self.change(q, k, v) if self.runs > 1 else (q, k, v)), **options)

        return super().hidden(tokens, position_ids, changed)


# Dtype and heads of both, and the width of the values alone.
CHANGES = {
    "keys are torch.float32 of [2, 8] and were torch.float64 of [2, 8]": lambda *qkv: [x.float() for x in qkv],
    "keys are torch.float64 of [1, 8] and were torch.float64 of [2, 8]": lambda q, k, v: (q, k[:, :1], v[:, :1]),
    "values are torch.float64 of [2, 16] and were torch.float64 of [2, 8]": lambda q, k, v: (q, k, v.repeat(1, 1, 2)),
}


@pytest.mark.parametrize("text", CHANGES)
def test_layers_that_change(tree, text):
    policy = Growing()
    policy.change = CHANGES[text]
    with broken("a layer's " + text.replace("[", r"\[") + ": give each layer its own key"):
        replay(policy, tree)


class Skipping(Policy):
    """Leaves its second layer out where a segment does not begin a sequence."""

    def hidden(self, tokens, position_ids, attend):
        x = self.embedding(tokens) + self.positions(position_ids)
        for layer in self.layers[: 2 if position_ids[0] == 0 else 1]:
            x = layer(x, attend)
        return x


def test_a_layer_that_is_left_out(tree):
    with broken(r"1 layers did not attend for tokens 3 to 6, a layer \(Layer\) among them: all layers must run"):
        replay(Skipping(), tree)


class Cutting(Policy):
    """Detaches what its last layer attends where a segment begins a sequence."""

    def hidden(self, tokens, position_ids, attend):
        def detached(layer, *qkv, **options):
            out = attend(layer, *qkv, **options)
            return out.detach() if position_ids[0] == 0 and layer is self.layers[1] else out

        return super().hidden(tokens, position_ids, detached)


def test_gradients_that_no_backward_takes(tree):
    with broken("the backward of 1 layers did not run for tokens 0 to 3, so gradients of their keys would be lost"):
        replay(Cutting(), tree)


def test_backward_twice(tree):
    policy, segment = Policy(), Segment(0, 6, 0, -1, False)
    run = Run(Path(6), tree, segment)
    hidden = policy.replay_hidden(run)
    run.finish()
    hidden.sum().backward(retain_graph=True)
    with broken("a segment was back-propagated twice: its path's gradients are gone after the first time"):
        hidden.sum().backward()


@pytest.mark.parametrize("objective", [Additive, Coupled])
@pytest.mark.parametrize("prefix_grad", ["exact", "detached"])
@pytest.mark.parametrize("where", [None, 9])
def test_progress_counts_what_it_announced(tree, objective, prefix_grad, where):
    seen = []
    objective = objective(tree)
    if where is not None:
        objective.where = lambda tree: torch.arange(tree.num_tokens) >= where
    result = regrow.replay.backward(
        Policy(), tree, objective, chunk_tokens=4, prefix_grad=prefix_grad, progress=lambda *counts: seen.append(counts)
    )
    done, totals = zip(*seen, strict=True)
    assert list(done) == sorted(set(done)) and set(totals) == {done[-1]}
    assert done[-1] == result.stats.forward_tokens + result.stats.differentiated_tokens


def test_slots_are_clean_afterwards(tree, monkeypatch):
    """All gradients that descendants left have been taken."""
    paths = []
    monkeypatch.setattr("regrow.replay.walk.Path", lambda *arguments: paths.append(Path(*arguments)) or paths[-1])
    replay(Policy(), tree)
    assert len(paths[0].layers) == 2
    for slots in paths[0].layers.values():
        assert not slots.dkeys.any() and not slots.dvalues.any()


def test_the_caller_s_mode_is_kept(tree):
    """A model in train mode stays there, and an outer no_grad changes no gradient."""
    policy = Policy()
    replay(policy, tree)
    expected = gradients(policy)
    with torch.no_grad():
        replay(policy, tree)
        assert not torch.is_grad_enabled()
    assert policy.training
    actual = gradients(policy)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_another_default_device(tree):
    """What the host reads is made on the host: a script may have called torch.set_default_device("cuda")."""
    policy, objective = Policy(), Additive(tree)
    with torch.device("meta"):
        regrow.replay.predict(policy, tree, objective, chunk_tokens=4)
        regrow.replay.backward(policy, tree, objective, chunk_tokens=4)
        regrow.replay.omitted_gradient(policy, tree, objective, chunk_tokens=4)


def test_an_objective_may_change_what_it_is_given(tree):
    """Log-probs and entropies are its own copies: the result's and the gradient's stay as they were."""

    class Rude(Additive):
        def on_tokens(self, logp, tree, entropy, index):
            loss = super().on_tokens(logp, tree, entropy, index)
            logp.data.zero_()
            return loss

    class RudeToAll(Coupled):
        def __call__(self, logp, tree, entropy):
            loss = super().__call__(logp, tree, entropy)
            logp.data.fill_(7.0)
            entropy.data.fill_(7.0)
            return loss

    policy = Policy()
    kept = replay(policy, tree)
    for objective in (Rude(tree), RudeToAll(tree)):
        result = regrow.replay.backward(policy, tree, objective, chunk_tokens=4)
        assert torch.equal(result.logprobs, kept.logprobs) and torch.equal(result.entropy, kept.entropy)


def test_a_transformers_model_that_is_no_longer_deterministic():
    model = regrow.models.attach(make_model("llama"))
    handle = model.model.layers[0].mlp.register_forward_hook(lambda _, __, out: out + torch.randn_like(out))
    with broken("were run twice"):
        regrow.replay.backward(model, make_tree(), Additive(make_tree()), chunk_tokens=4)
    handle.remove()
    tree = make_tree()
    regrow.replay.backward(model, tree, Additive(tree), chunk_tokens=4)
    actual = gradients(model)
    logp, entropy = regrow.models.logprobs(model, tree, return_entropy=True)
    Additive(tree)(logp, tree, entropy).backward()
    expected = gradients(model)
    assert max(relative_l2(actual[name], expected[name]) for name in expected) < 1e-5


@pytest.mark.parametrize("kind", ["whole", "sum over tokens"])
def test_a_loss_without_a_graph(tree, kind):
    policy = Policy()
    objective = (lambda logp, tree, entropy: logp.detach().sum()) if kind == "whole" else Detached()
    with pytest.raises(ValueError, match="the objective's loss depends on no log-prob and no entropy"):
        regrow.replay.backward(policy, tree, objective)
    assert all(parameter.grad is None for parameter in policy.parameters())


class Detached:
    def on_tokens(self, logp, tree, entropy, index):
        return logp.detach().sum()
