"""Temperature, top-k and top-p against a plain loop and transformers' warpers; draws that never return a zero."""

import doctest
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from regrow.rollout import sampling as module
from regrow.rollout.sampling import Sampling, draw, draw_without_replacement, sampling_logprobs, target_probabilities


def plainly(logits, sampling):
    """One row, as Python floats: sort by (logit, id), cut, renormalise."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0:
        return [float(token == order[0]) for token in range(len(logits))]
    weights = {token: math.exp((logits[token] - logits[order[0]]) / sampling.temperature) for token in order}
    for token in order[sampling.top_k or len(order) :]:
        del weights[token]
    total, mass = sum(weights.values()), 0.0
    for token in list(weights):
        if mass >= sampling.top_p * total and sampling.top_p < 1:
            del weights[token]
        else:
            mass += weights[token]
    return [weights.get(token, 0.0) / mass for token in range(len(logits))]


# Multiples of 1/4 make ties, and -inf what a mask forbids; the first logit is finite, so that a token is left.
LOGITS = st.tuples(
    st.integers(-12, 12).map(lambda n: n / 4),
    st.lists(st.one_of(st.integers(-12, 12).map(lambda n: n / 4), st.just(-math.inf)), max_size=7),
).map(lambda parts: [parts[0], *parts[1]])


@given(
    LOGITS,
    st.sampled_from([0, 0.1, 0.7, 1.0, 3.0]),
    # No sums of these weights' shares come within rounding of these.
    st.sampled_from([1e-6, 0.3137, 0.5003, 0.8009, 0.9001, 1.0]),
    st.sampled_from([None, 1, 2, 3, 100]),
)
def test_as_the_plain_loop(logits, temperature, top_p, top_k):
    sampling = Sampling(temperature, top_p, top_k)
    expected = torch.tensor([plainly(logits, sampling)], dtype=torch.float64)
    got = target_probabilities(torch.tensor([logits], dtype=torch.float64), sampling)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    logprobs = sampling_logprobs(torch.tensor([logits], dtype=torch.float64), sampling)
    torch.testing.assert_close(logprobs.exp(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [None, 2, 50])
def test_as_transformers(temperature, top_p, top_k, generator):
    # 2,000 tokens of small logits: nuclei of more than the 256 that are looked at first.
    logits = torch.randn(6, 2000, generator=generator, dtype=torch.float64) * torch.logspace(-1, 1, 6)[:, None]
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    got = target_probabilities(logits, Sampling(temperature, top_p, top_k))
    torch.testing.assert_close(got, scores.softmax(-1), rtol=1e-10, atol=0)


@pytest.mark.parametrize(("sampling", "kept"), [(Sampling(top_k=2), 2), (Sampling(top_p=0.51), 3), (Sampling(0), 1)])
def test_ties_go_to_the_lower_ids(sampling, kept):
    probabilities = target_probabilities(torch.zeros(2, 5), sampling)
    torch.testing.assert_close(probabilities, torch.zeros(2, 5).index_fill(1, torch.arange(kept), 1 / kept))


def test_a_row_does_not_depend_on_the_others(generator):
    # The flat row makes `_nucleus_sizes` look at more than 256 tokens.
    logits = torch.cat([torch.randn(3, 1000, generator=generator) * 5, torch.zeros(1, 1000)])
    sampling = Sampling(0.7, 0.95, 900)
    together = target_probabilities(logits, sampling)
    alone = torch.cat([target_probabilities(row[None], sampling) for row in logits])
    assert together.equal(alone)


def test_dtypes_and_no_rows():
    assert target_probabilities(torch.zeros(1, 3, dtype=torch.bfloat16), Sampling()).dtype == torch.float32
    assert target_probabilities(torch.zeros(1, 3, dtype=torch.float64), Sampling()).dtype == torch.float64
    for sampling in (Sampling(), Sampling(0), Sampling(top_p=0.5, top_k=2)):
        assert target_probabilities(torch.zeros(0, 3), sampling).shape == (0, 3)


def test_extreme_temperatures():
    logits = torch.tensor([[1e4, 2e4, -1e4]])
    assert target_probabilities(logits, Sampling(1e-30)).tolist() == [[0, 1, 0]]
    torch.testing.assert_close(target_probabilities(logits, Sampling(1e30)), torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature is -1.0, must be 0 \(greedy\) or from 1e-30"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": 1e-60}, "temperature is 1e-60"),
        ({"top_p": 0.0}, r"top_p is 0.0, must be in \(0, 1\]: pass 1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_k": 0}, "top_k is 0, must be an int of at least 1: pass None"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_k": True}, "top_k is True"),
    ],
)
def test_options_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(3), r"logits are \[3\], must be \[R, V\]"),
        (torch.zeros(3, 0), r"logits are \[3, 0\]"),
        (torch.tensor([[0.0, 1], [math.nan, 1]]), "the largest logit of row 1 is nan, must be finite"),
        (torch.tensor([[0.0, math.inf]]), "the largest logit of row 0 is inf"),
        (torch.full((1, 2), -math.inf), "the largest logit of row 0 is -inf"),
    ],
)
def test_logits_refused(temperature, logits, message):
    with pytest.raises(ValueError, match=message):
        target_probabilities(logits, Sampling(temperature))


def test_draws_are_the_inverse_of_the_cumulative_distribution():
    uniforms = torch.arange(1000, dtype=torch.float64) / 1000
    tokens = draw(torch.tensor([[0.0, 0.25, 0, 0.5, 0.25, 0]]).expand(1000, -1), uniforms)
    assert tokens.bincount(minlength=6).tolist() == [0, 250, 0, 500, 250, 0]
    assert tokens.equal(tokens.sort().values)


# Vocabularies around one and several of the blocks that are summed, half of their tokens without mass.
@pytest.mark.parametrize("num_tokens", [1, 255, 256, 257, 512, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_from_blocks(num_tokens, dtype, generator):
    weights = torch.rand(20, num_tokens, generator=generator, dtype=dtype)
    weights[:, 1:] *= (torch.rand(20, num_tokens - 1, generator=generator) < 0.5) & (torch.arange(1, num_tokens) < 2000)
    uniforms = torch.rand(20, generator=generator, dtype=torch.float64)
    cumulative = weights.double().cumsum(-1)
    expected = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    assert draw(weights, uniforms).equal(expected[:, 0])
    last = draw(weights, torch.full((20,), 1 - 2**-53, dtype=torch.float64))
    assert bool((weights.gather(1, last[:, None]) > 0).all())


@pytest.mark.parametrize("num_tokens", [3, 300])
def test_no_rows_no_draws(num_tokens):
    assert draw(torch.ones(0, num_tokens), torch.ones(0)).shape == (0,)


# Where sums round: none is 1, terms vanish beside their neighbours, the mass is the smallest number there is.
@pytest.mark.parametrize(
    "weights", [[0.1] * 10 + [0], [1.0, 1e-30, 0], [0, 5e-324, 0], [0.3, 0, 0.6, 0, 0], [0, 1e300, 1e-300, 0]]
)
@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.5, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(weights, uniform):
    (token,) = draw(torch.tensor([weights], dtype=torch.float64), torch.tensor([uniform], dtype=torch.float64)).tolist()
    assert weights[token] > 0


@pytest.mark.parametrize(
    ("probabilities", "uniforms", "message"),
    [
        (torch.ones(2, 3), torch.zeros(3), r"probabilities are \[2, 3\] and uniforms \[3\]"),
        (torch.ones(2, 0), torch.zeros(2), r"probabilities are \[2, 0\]"),
        (torch.ones(1, 3), torch.ones(1), r"a uniform is 1.0, must be in \[0, 1\)"),
        (torch.ones(1, 3), torch.tensor([math.nan]), "a uniform is nan"),
        (torch.zeros(1, 3), torch.zeros(1), "the probabilities of row 0 sum to 0.0, must be positive"),
        (torch.tensor([[0.5, math.nan]]), torch.zeros(1), "the probabilities of row 0 sum to nan"),
    ],
)
def test_draws_refused(probabilities, uniforms, message):
    with pytest.raises(ValueError, match=message):
        draw(probabilities, uniforms)


@given(st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=1, max_size=6), st.integers(1, 7), st.integers(0, 99))
def test_without_replacement(weights, width, seed):
    uniforms = torch.rand(3, width, generator=torch.Generator().manual_seed(seed))
    for row in draw_without_replacement(torch.tensor([weights]).expand(3, -1), uniforms).tolist():
        drawn = [token for token in row if token >= 0]
        assert len(set(drawn)) == len(drawn) == min(width, sum(map(bool, weights)))
        assert all(weights[token] > 0 for token in drawn)
        assert row == drawn + [-1] * (width - len(drawn))


def test_examples():
    assert doctest.testmod(module).failed == 0
