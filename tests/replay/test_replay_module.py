"""A plain nn.Module that follows the protocol: exact on random trees, against its sequences one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow.replay
from model_families import gradients, relative_l2
from policy import Policy, packed, random_tree, sequences_alone
from preorder_trees import preorder_nodes
from replay_objectives import Additive, Coupled

LIMIT = 1e-10  # the largest seen is 1e-13

# What each has that the others have not. A window of 3 is shorter than most segments, one of 1 leaves only oneself.
POLICIES = {
    "plain": dict(),
    "windows": dict(layers=[{"window": 3}, {}, {"window": 1}]),
    "a window that ends inside chunks": dict(layers=[{"window": 9}, {"window": 9}]),
    "softcap and scale": dict(layers=[{"softcap": 0.7, "scale": 0.3}, {}], head=(0.5, 3.0)),
    "sinks": dict(layers=[{"window": 4}, {}], sinks=True),
}


def make_policy(name):
    options = dict(POLICIES[name])
    return Policy(*options.pop("layers", ()), **options)


def assert_exact(policy, tree, objective, chunk_tokens):
    logp, entropy = sequences_alone(policy, tree)
    objective.of_sequences(logp, entropy, tree).backward()
    expected = gradients(policy)
    result = regrow.replay.backward(policy, tree, objective, chunk_tokens=chunk_tokens)
    assert relative_l2(tree.unpack(result.logprobs), logp.detach()) <= LIMIT
    assert relative_l2(tree.unpack(result.entropy), entropy.detach()) <= LIMIT
    assert result.stats.differing_elements == 0
    actual = gradients(policy)
    errors = {name: relative_l2(actual[name], gradient) for name, gradient in expected.items()}
    assert {name: error for name, error in errors.items() if not error <= LIMIT} == {}


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15)
@given(
    preorder_nodes(max_nodes=12, max_length=6), st.integers(1, 24), st.sampled_from([Additive, Coupled]), st.integers(0)
)
def test_random_trees(name, nodes, chunk_tokens, objective, seed):
    tree = random_tree(*nodes, seed=seed % 2**32)
    assert_exact(make_policy(name), tree, objective(tree), chunk_tokens)


def test_the_references_agree():
    tree, policy = random_tree([-1, 0, 0, 2, 2], [3, 2, 2, 1, 3]), make_policy("sinks")
    for whole, alone in zip(packed(policy, tree), sequences_alone(policy, tree), strict=True):
        assert relative_l2(tree.unpack(whole), alone) <= 1e-12


class Documented(nn.Module):
    """The example in Replayable's docstring, around the parts that it takes for granted; no subclass of it."""

    def __init__(self):
        super().__init__()
        inner = Policy(seed=3)
        self.embedding, self.positions, self.head = inner.embedding, inner.positions, inner.head
        self.layers = nn.ModuleList(DocumentedLayer(layer) for layer in inner.layers)

    def replay_hidden(self, segment):
        x = self.embedding(segment.tokens) + self.positions(segment.position_ids)
        for layer in self.layers:
            q, k, v = layer.project(x)  # [S,Hq,D], [S,Hkv,D], [S,Hkv,Dv]
            x = layer.mix(x, segment.attend(layer, q, k, v))
        return x

    def replay_head(self):
        return regrow.replay.Head(self.head.weight)


class DocumentedLayer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def project(self, x):
        q, k, v = self.layer.qkv(self.layer.norm(x)).view(len(x), 8, -1).split([4, 2, 2], 1)
        return 2 * q, 2 * k, v

    def mix(self, x, attended):
        x = x + self.layer.out(attended.reshape(len(x), -1))
        return x + self.layer.mlp(self.layer.mlp_norm(x))


def test_the_documented_example():
    lines = [line.strip() for line in regrow.replay.Replayable.__doc__.splitlines()]
    for line in ("q, k, v = layer.project(x)  # [S,Hq,D], [S,Hkv,D], [S,Hkv,Dv]", "return Head(self.head.weight)"):
        assert line in lines
    tree = random_tree([-1, 0, 0], [5, 3, 4])
    policy, documented = Policy(seed=3), Documented()
    regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=3)
    regrow.replay.backward(documented, tree, Additive(tree), chunk_tokens=3)
    expected, actual = gradients(policy), gradients(documented)
    assert actual.keys() - expected.keys() == {name for name in actual if ".layer." in name}
    assert all(torch.equal(actual[name], expected[name.replace(".layer.", ".")]) for name in actual)


def test_a_tree_in_which_nothing_is_scored():
    """Roots alone: nothing runs, the objective is still asked, and no gradient appears."""
    policy, tree = Policy(), random_tree([-1, -1], [1, 1])
    for objective in (Additive(tree), Coupled(tree)):
        result = regrow.replay.backward(policy, tree, objective)
        expected = objective.of_sequences(*(torch.zeros(2, dtype=torch.float64) for _ in "ab"), tree)
        assert torch.equal(result.loss, expected)
        assert (result.stats.segments, result.stats.forward_tokens, result.stats.differentiated_tokens) == (0, 0, 0)
        assert all(parameter.grad is None for parameter in policy.parameters())


def test_a_head_that_is_computed(recwarn):
    """Its weight is no leaf: it has no `.grad`, and is made anew for every segment."""

    class Doubled(Policy):
        def replay_head(self):
            return regrow.replay.Head(2 * self.head.weight)

    plain, doubled = Policy(head=(2.0, None)), Doubled()
    tree = random_tree([-1, 0, 0], [6, 4, 5])
    for policy in (plain, doubled):
        regrow.replay.predict(policy, tree, Additive(tree), chunk_tokens=4)
        regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=4)
    torch.testing.assert_close(doubled.head.weight.grad, plain.head.weight.grad)
    torch.testing.assert_close(doubled.embedding.weight.grad, plain.embedding.weight.grad)
    assert not recwarn.list


def test_an_empty_tree():
    policy, tree = Policy(), random_tree([], [])
    result = regrow.replay.backward(policy, tree, lambda logp, tree, entropy: logp.sum())
    assert result.loss == 0 and result.logprobs.shape == (0,)
    assert regrow.replay.logprobs(policy, tree).shape == (0,)


class Experts(Policy):
    """Behind each layer, a token passes through one of two experts; a chunk may hold no token of some."""

    input_requires_grad = False

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(2)) for _ in range(2)).double()

    def hidden(self, tokens, position_ids, attend):
        x = self.embedding(tokens) + self.positions(position_ids)
        if self.input_requires_grad and torch.is_grad_enabled():
            x.requires_grad_()
        for layer, experts in zip(self.layers, self.experts, strict=True):
            x = layer(x, attend)
            for number, expert in enumerate(experts):
                if (mine := (tokens % 2 == number).nonzero()[:, 0]).numel():
                    x = x.index_add(0, mine, expert(x[mine]))
        return x


def experts(trainable):
    policy = Experts()
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name.startswith(trainable))
    return policy, random_tree([-1, 0, 0, 2, 2], [5, 3, 4, 2, 3])


@pytest.mark.parametrize("trainable", ["", "experts.", "experts.1.1."])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 64])
def test_segments_that_no_trained_parameter_reaches(trainable, chunk_tokens):
    policy, tree = experts(trainable)
    assert_exact(policy, tree, Additive(tree), chunk_tokens)


@pytest.mark.parametrize("trainable", [("experts.0.1.",), ("experts.0.1.", "head.")])
def test_keys_that_need_a_gradient_in_some_segments(trainable):
    """A segment without a token of the trained expert would have no backward for the keys of those above it."""
    policy, tree = experts(trainable)
    assert_exact(policy, tree, Additive(tree), 64)
    with pytest.raises(
        RuntimeError, match=r"the keys of a layer \(Layer\) depend on trained .* gradients would be lost"
    ):
        regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=1)
    assert all(parameter.grad is None for parameter in policy.parameters())
    policy.input_requires_grad = True
    assert_exact(policy, tree, Additive(tree), 1)


@pytest.mark.parametrize("prefix_grad", ["exact", "detached"])
def test_a_trained_parameter_that_takes_no_part(prefix_grad):
    policy, tree = Policy().requires_grad_(False), random_tree([-1, 0, 0], [5, 3, 4])
    policy.unused = nn.Parameter(torch.ones(1))
    with pytest.raises(RuntimeError, match="no log-prob depends on a parameter that requires a gradient: require one"):
        regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=3, prefix_grad=prefix_grad)


class Where(Additive):
    """Looks at the tokens from `first` on only."""

    def __init__(self, tree, first):
        super().__init__(tree)
        self.mask = torch.arange(tree.num_tokens) >= first
        self.packed = [weight * self.mask for weight in self.packed]

    def where(self, tree):
        return self.mask


@pytest.mark.parametrize("first", [0, 5, 9, 12, 22, 99])
def test_where(first):
    policy, tree = make_policy("windows"), random_tree([-1, 0, 1, 0, -1], [4, 5, 6, 7, 3])
    objective = Where(tree, first)
    logp, entropy = (score * objective.mask for score in packed(policy, tree))
    objective(logp, tree, entropy).backward()
    expected = gradients(policy)
    result = regrow.replay.backward(policy, tree, objective, chunk_tokens=3)
    passed = []
    values = regrow.replay.logprobs(
        policy, tree, where=objective.mask, chunk_tokens=3, return_entropy=True,
        progress=lambda done, total: passed.append((done, total)),
    )  # fmt: skip
    for scored in ((result.logprobs, result.entropy), values):
        assert relative_l2(scored[0], logp.detach()) <= LIMIT
        assert relative_l2(scored[1], entropy.detach()) <= LIMIT
    actual = gradients(policy)
    assert max(relative_l2(actual[name], expected[name]) for name in expected) <= LIMIT
    done, planned = passed[-1] if passed else (0, 0)
    assert done == planned <= tree.num_tokens
    if first == 22:  # the second root's tokens: the first conversation does not run
        assert done == 3
