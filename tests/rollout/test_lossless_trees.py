"""What sampled drafts emit has the target's distribution: enumerated for a node, by chi-square for sequences."""

import itertools
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chi_square import chi_square_p_value
from regrow.rollout.drafters import Draft
from regrow.rollout.sampling import Sampling, target_probabilities
from regrow.rollout.verify import Residual
from speculated_text import speculate

VOCABULARY = 5
LENGTH = 3  # tokens of a sequence whose distribution is compared
SAMPLES = 1500
START = VOCABULARY  # stands for the tokens before the first

# ---- One node, exactly ----

WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.sampled_from([1e-300, 1e-17, 0.25, 0.5, 1.0]))


def distributions(size):
    return st.lists(WEIGHTS, min_size=size, max_size=size).filter(lambda row: sum(row) > 1e-9)


def ordered_draws(draft, width):
    """Every sequence of `width` children drawn without replacement, with its probability; shorter if mass runs out."""
    rows = [((), 1.0)]
    for _ in range(width):
        longer = []
        for children, probability in rows:
            left = [0.0 if token in children else weight for token, weight in enumerate(draft)]
            mass = sum(left)
            if mass == 0:
                longer.append((children, probability))
                continue
            longer += [
                ((*children, token), probability * weight / mass) for token, weight in enumerate(left) if weight > 0
            ]
        rows = longer
    return rows


def emitted(target, draft, children):
    """The distribution of the token that a node emits, given its children in order."""
    residual = Residual(torch.tensor(target, dtype=torch.float64), draft)
    probabilities, reached = torch.zeros(len(target), dtype=torch.float64), 1.0
    for token in children:
        acceptance = residual.acceptance(token)
        probabilities[token] += reached * acceptance
        reached *= 1 - acceptance
        residual.reject(token)
    return probabilities + reached * residual.target / residual.target_mass


def normalised(weights):
    row = torch.tensor(weights, dtype=torch.float64)
    return row / row.sum()


@given(st.integers(2, 5).flatmap(lambda size: st.tuples(distributions(size), distributions(size))), st.integers(0, 3))
def test_a_node_with_drawn_children(rows, width):
    target, draft = rows
    total = torch.zeros(len(target), dtype=torch.float64)
    for children, probability in ordered_draws(draft, width):
        total += probability * emitted(target, torch.tensor(draft, dtype=torch.float64), children)
    torch.testing.assert_close(total, normalised(target), rtol=0, atol=1e-12)


# ---- Whole sequences, by chi-square ----


def model(context, sampling):
    """The next token's distributions, fp64 [contexts, V], after [contexts, 2] tokens: a fixed table of logits."""
    table = torch.randn(START + 1, START + 1, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 1.3
    return target_probabilities(table.double()[context[:, 0], context[:, 1]], sampling)


def test_chi_square_p_value():
    # 3.841 and 5.991 are the 5 % points for one and two degrees of freedom.
    expected = torch.tensor([50.0, 50.0], dtype=torch.float64)
    shift = (3.841459 * 25) ** 0.5
    assert chi_square_p_value(expected + torch.tensor([shift, -shift]), expected) == pytest.approx(0.05, abs=1e-5)
    expected = torch.tensor([50.0, 50, 50], dtype=torch.float64)
    shift = (5.991465 * 25) ** 0.5
    assert chi_square_p_value(expected + torch.tensor([shift, -shift, 0]), expected) == pytest.approx(0.05, abs=1e-5)
    assert chi_square_p_value(torch.tensor([99.0, 1]), torch.tensor([100.0, 0])) == 0
    # 3 and 1 are lumped: 4 against 4.
    assert chi_square_p_value(torch.tensor([9.0, 1, 3]), torch.tensor([9.0, 3, 1])) == 1


# What a drafter knows of the target's distributions [nodes, V] -> what it draws from.
DRAFTERS = {
    "exact": lambda target: target,
    "good": lambda target: 0.8 * target + 0.2 / VOCABULARY,
    "bad": lambda target: (1.01 - target) / (1.01 - target).sum(-1, keepdim=True),
    "mixed": lambda target: 0.8 * target + 0.2 / VOCABULARY,  # but below nodes of even tokens, where it chooses
    # All but a thousandth on what the target gives least, 0 under truncation.
    "adversarial": lambda target: 1e-3 / VOCABULARY + 0.999 * torch.eye(VOCABULARY).double()[target.argmin(-1)],
    "narrow": lambda target: torch.eye(VOCABULARY).double()[target.argmax(-1)],  # mass for one child
}


class Tables:
    """Distributions of the model and of a drafter for every pair of last tokens."""

    def __init__(self, drafter, sampling):
        contexts = torch.tensor(list(itertools.product(range(START + 1), repeat=2)))
        self.target = model(contexts, sampling).reshape(START + 1, START + 1, VOCABULARY)
        self.draft = DRAFTERS[drafter](self.target)
        self.draft_rows = self.draft.numpy()
        self.chooses = drafter == "mixed"

    def after(self, contexts):
        first, second = torch.tensor([last_two(context) for context in contexts]).T
        return self.target[first, second]


def last_two(text):
    return tuple([START, START, *text][-2:])


def propose(tables, text, width, depth, rng):
    """A tree with `width` children at each inner node, fewer where the drafter has no mass for more."""
    tokens, parents, distributions = [], [], {}

    def grow(node, context, levels):
        if levels == 0:
            return
        if tables.chooses and context[1] % 2 == 0:
            # Always the same at a place: over random candidates some errors would average out.
            children = (np.arange(width) * 3 + context[0] + 2 * context[1]) % VOCABULARY
        else:
            # The largest of log q + Gumbel noise, in order: draws without replacement, by another way than ours.
            weights = tables.draft_rows[context]
            with np.errstate(divide="ignore"):
                keys = np.log(weights) + rng.gumbel(size=VOCABULARY)
            children = np.argsort(-keys, kind="stable")[: min(width, np.count_nonzero(weights))]
            distributions[node] = tables.draft[context]
        for token in children.tolist():
            tokens.append(token)
            parents.append(node)
            grow(len(tokens) - 1, (context[1], token), levels - 1)

    grow(-1, last_two(text), depth)
    return Draft(parents, tokens, None, distributions)


def sample_sequences(tables, width, depth, seed, samples):
    """int64 [samples]: the first LENGTH tokens that speculation emits, as digits of a number."""
    rng = np.random.default_rng(seed)
    texts = speculate(
        tables.after, lambda _, text: propose(tables, text, width, depth, rng), seed, samples, LENGTH, draws=width + 1
    )
    return (torch.tensor(texts) * VOCABULARY ** torch.arange(LENGTH)).sum(1)


def sequence_probabilities(tables):
    """fp64 [V ** LENGTH], by enumeration."""
    probabilities = torch.zeros(VOCABULARY**LENGTH, dtype=torch.float64)
    for tokens in itertools.product(range(VOCABULARY), repeat=LENGTH):
        context, probability = (START, START), 1.0
        for token in tokens:
            probability *= float(tables.target[context][token])
            context = (context[1], token)
        probabilities[sum(token * VOCABULARY**place for place, token in enumerate(tokens))] = probability
    return probabilities


def p_value(drafter, sampling, width, depth, samples=SAMPLES):
    tables = Tables(drafter, sampling)
    seed = zlib.crc32(f"{drafter} {sampling} {width} {depth}".encode())
    counts = sample_sequences(tables, width, depth, seed, samples).bincount(minlength=VOCABULARY**LENGTH).double()
    return chi_square_p_value(counts, sequence_probabilities(tables) * samples)


PLAIN, COOL, NUCLEUS, TOP_TWO = Sampling(), Sampling(0.7), Sampling(top_p=0.8), Sampling(top_k=2)

SETTINGS = [
    # every drafter, with siblings and grandchildren
    *((drafter, PLAIN, 2, 2) for drafter in DRAFTERS),
    # truncation, where draws meet tokens of probability 0
    ("good", NUCLEUS, 2, 2),
    ("adversarial", NUCLEUS, 3, 1),
    ("adversarial", TOP_TWO, 2, 2),
    ("bad", TOP_TWO, 3, 1),
    ("mixed", NUCLEUS, 2, 2),
    # temperature, chains, and the widest and deepest
    ("good", COOL, 1, 3),
    ("good", COOL, 2, 3),
]


@pytest.mark.parametrize(("drafter", "sampling", "width", "depth"), SETTINGS)
def test_sequences_have_the_targets_distribution(drafter, sampling, width, depth):
    # Seeds are fixed, so this cannot flicker; 1e-3 for 14 settings.
    assert p_value(drafter, sampling, width, depth) > 1e-3


def keep_the_target(residual, token):
    residual.draft = residual.draft.index_fill(0, torch.tensor(token), 0)
    residual.draft_mass = float(residual.draft.sum())


def keep_the_draft(residual, token):
    residual.target = (residual.target / residual.target_mass - residual.draft).clamp(min=0)
    residual.target_mass = float(residual.target.sum())


# What is wrong, and a setting in which it shows.
WRONG = {
    "no residual": ("reject", keep_the_target, ("bad", PLAIN, 2, 2)),
    "as if with replacement": ("reject", keep_the_draft, ("adversarial", PLAIN, 3, 1)),
    "always accepted": ("acceptance", lambda residual, token: 1.0, ("good", PLAIN, 2, 2)),
    "accepted by the target's probability": (
        "acceptance",
        lambda residual, token: float(residual.target[token]),
        ("good", PLAIN, 1, 3),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_verifiers_are_caught(wrong, monkeypatch):
    name, replacement, setting = WRONG[wrong]
    monkeypatch.setattr(Residual, name, replacement)
    assert p_value(*setting, samples=SAMPLES // 2) < 1e-6
