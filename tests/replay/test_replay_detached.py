"""prefix_grad="detached" drops what segments owe to the keys and values of others, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regrow.replay
from model_families import gradients, relative_l2
from policy import Policy, packed, random_tree
from preorder_trees import preorder_nodes
from regrow.replay import schedule
from replay_objectives import Additive, Coupled

LIMIT = 1e-10  # the largest seen is 1e-13

LAYERS = {"plain": [{}, {}], "window, softcap and sinks": [{"window": 4, "softcap": 0.9}, {}]}


def make_policy(name):
    return Policy(*LAYERS[name], sinks="sinks" in name)


def segments_of(tree, chunk_tokens):
    return schedule.cut(
        tree.node_start.numpy(), tree.parent.numpy(), tree.position_ids.numpy(), tree.subtree_end.numpy(), chunk_tokens
    )


def dense(policy, tree, objective, segments):
    """Gradients of the whole tree in one graph, with the keys and values of other segments detached."""
    segment_of = torch.repeat_interleave(torch.tensor([segment.size for segment in segments]))
    logp, entropy = packed(policy, tree, segment_of)
    objective(logp, tree, entropy).backward()
    return gradients(policy)


def replayed(policy, tree, objective, chunk_tokens, prefix_grad):
    result = regrow.replay.backward(policy, tree, objective, chunk_tokens=chunk_tokens, prefix_grad=prefix_grad)
    return gradients(policy), result


def largest_error(actual, expected):
    return max(relative_l2(actual[name], gradient) for name, gradient in expected.items())


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=15)
@given(preorder_nodes(max_nodes=12, max_length=6), st.integers(1, 24), st.sampled_from([Additive, Coupled]))
def test_keys_of_other_segments_are_constants(name, nodes, chunk_tokens, objective):
    policy, tree = make_policy(name), random_tree(*nodes)
    expected = dense(policy, tree, objective(tree), segments_of(tree, chunk_tokens))
    actual, result = replayed(policy, tree, objective(tree), chunk_tokens, "detached")
    assert largest_error(actual, expected) <= LIMIT
    assert result.stats.compared_elements == 0 and result.stats.kv_gradient_bytes == 0


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_not_the_exact_gradient(name):
    policy, tree = make_policy(name), random_tree([-1, 0, 0], [6, 4, 4])
    exact, one = replayed(policy, tree, Additive(tree), 4, "exact")
    detached, other = replayed(policy, tree, Additive(tree), 4, "detached")
    assert largest_error(detached, exact) > 1e-2
    assert torch.equal(one.logprobs, other.logprobs) and torch.equal(one.entropy, other.entropy)
    together, _ = replayed(policy, tree, Additive(tree), 64, "detached")
    assert largest_error(together, replayed(policy, tree, Additive(tree), 64, "exact")[0]) == 0.0


class FirstTokens:
    """Looks at the responses' first tokens only, which the prompt's last row predicts."""

    def __init__(self, prompt):
        self.prompt = prompt

    def where(self, tree):
        return (tree.position_ids == self.prompt) & (tree.parent_index == self.prompt - 1)

    def __call__(self, logp, tree, entropy):
        return (logp * self.where(tree)).sum()

    def on_tokens(self, logp, tree, entropy, index):
        return logp.sum()


@pytest.mark.parametrize("prefix_grad", ["exact", "detached"])
def test_a_prompt_gives_what_its_rows_predict(prefix_grad):
    """Tokens of segments that do not run are scored by the inner segment above them."""
    policy, tree = make_policy("plain"), random_tree([-1, 0, 0, 0], [8, 4, 4, 4])
    objective, chunk_tokens = FirstTokens(8), 4
    segments = segments_of(tree, chunk_tokens)
    if prefix_grad == "detached":
        expected = dense(policy, tree, objective, segments)
    else:
        objective(packed(policy, tree)[0], tree, None).backward()
        expected = gradients(policy)
    actual, result = replayed(policy, tree, objective, chunk_tokens, prefix_grad)
    assert largest_error(actual, expected) <= LIMIT
    assert all(gradient.norm() > 0 for gradient in expected.values())
    assert result.stats.segments == 2 < len(segments)
    assert result.stats.differentiated_tokens == (8 if prefix_grad == "exact" else 4)
