"""Numbers that are none are noticed before they are back-propagated, and named by sequence and token."""

import pytest
import torch

import regrow.replay
from policy import Policy
from regrow import PrefixTree
from replay_objectives import Additive, Coupled


def not_a_number(text):
    return pytest.raises(FloatingPointError, match=text)


def replay(policy, tree, chunk_tokens=4, **options):
    return regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=chunk_tokens, **options)


class BehindAttention(Policy):
    """Its last hidden states are nan at token 7."""

    def hidden(self, tokens, position_ids, attend):
        return super().hidden(tokens, position_ids, attend).masked_fill((tokens == 7)[:, None], torch.nan)


NAMED_NAN = PrefixTree.from_sequences([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7, 9]])  # axis: 1 2 3 4 5 6 7 9
NAN_LOGP = r"the log-prob of token 5 of sequence 1 \(axis position 7\) is nan: look for inf or nan in the weights"


@pytest.mark.parametrize("chunk_tokens", [1, 3, 64])
@pytest.mark.parametrize("prefix_grad", ["exact", "detached"])
@pytest.mark.parametrize("objective", [Additive, Coupled])
def test_nan_log_probs(chunk_tokens, prefix_grad, objective):
    """Of 9, which follows 7."""
    policy, options = BehindAttention(), dict(chunk_tokens=chunk_tokens)
    with not_a_number(NAN_LOGP):
        regrow.replay.backward(policy, NAMED_NAN, objective(NAMED_NAN), prefix_grad=prefix_grad, **options)
    with not_a_number(NAN_LOGP):
        regrow.replay.logprobs(policy, NAMED_NAN, **options)
    assert all(parameter.grad is None for parameter in policy.parameters())


@pytest.mark.parametrize("chunk_tokens", [1, 64])
def test_nan_before_its_segment_is_back_propagated(chunk_tokens):
    policy = BehindAttention()
    with not_a_number(NAN_LOGP):
        replay(policy, NAMED_NAN, chunk_tokens, atomic=False)  # the last segment is the first to be scored
    assert all(parameter.grad is None for parameter in policy.parameters())


def nan_embedding(*layers):
    policy = Policy(*layers)
    with torch.no_grad():
        policy.embedding.weight[2] = torch.nan
    return policy


def test_nan_weights():
    """What attention spreads is named where it is met: kernels work on tiles, in which nan times 0 is nan."""
    with not_a_number(r"the log-prob of token \d of sequence \d \(axis position \d\) is nan"):
        replay(nan_embedding(), NAMED_NAN, 3)


def test_nan_keys_that_nothing_else_sees_are_no_noise():
    """Under a window of 1, a nan stays with its token, whose segment has the same bits in both runs."""
    with not_a_number(r"the log-prob of token 2 of sequence 0 \(axis position 2\) is nan"):
        replay(nan_embedding({"window": 1}), NAMED_NAN, 1)


class Derivative(Additive):
    """Its derivative by the log-prob or by the entropy is nan at one token."""

    def __init__(self, tree, name):
        super().__init__(tree)
        self.name = name

    def __call__(self, logp, tree, entropy):
        return self.on_tokens(logp, tree, entropy, torch.arange(tree.num_tokens))

    def on_tokens(self, logp, tree, entropy, index):
        root = 0 * {"log-prob": logp, "entropy": entropy}[self.name]
        return logp.sum() + entropy.sum() + root[index == 4].sqrt().sum() * 0


@pytest.mark.parametrize("name", ["log-prob", "entropy"])
@pytest.mark.parametrize("parts", [True, False])
def test_nan_derivatives(name, parts):
    objective = Derivative(NAMED_NAN, name)
    policy = Policy()
    text = rf"the objective's derivative by the {name} of token 4 of sequence 0 \(axis position 4\) is nan"
    with not_a_number(text):
        regrow.replay.backward(policy, NAMED_NAN, objective if parts else objective.__call__, chunk_tokens=2)
    assert all(parameter.grad is None for parameter in policy.parameters())
