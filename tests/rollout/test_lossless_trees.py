"""What speculation emits has the target's distribution: enumerated for a node, by chi-square for whole sequences."""

import itertools
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.rollout.sampling import Sampling, target_probabilities, uniform
from regrow.rollout.verify import DraftTree, Residual, verify

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


@given(
    st.integers(2, 5).flatmap(
        lambda size: st.tuples(distributions(size), distributions(size), st.permutations(list(range(size))))
    ),
    st.integers(0, 5),
)
def test_a_node_with_chosen_children(rows, width):
    # Deterministic, and those that the draft gives no mass: each order of children emits the target by itself.
    target, draft, order = rows
    chosen = emitted(target, None, order[:width])
    torch.testing.assert_close(chosen, normalised(target), rtol=0, atol=1e-12)
    unmassed = [token for token in order if draft[token] == 0][:width]
    chosen = emitted(target, torch.tensor(draft, dtype=torch.float64), unmassed)
    torch.testing.assert_close(chosen, normalised(target), rtol=0, atol=1e-12)


# ---- Whole sequences, by chi-square ----


def model(context, sampling):
    """The next token's distributions, fp64 [contexts, V], after [contexts, 2] tokens: a fixed table of logits."""
    table = torch.randn(START + 1, START + 1, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 1.3
    return target_probabilities(table.double()[context[:, 0], context[:, 1]], sampling)


def chi_square_p_value(counts, expected):
    """P(as unlikely or more) of the counts; cells that expect fewer than 5 are one. 0 if the impossible occurred."""
    if bool(counts[expected == 0].any()):
        return 0.0
    few = expected < 5
    counts = torch.cat([counts[~few], counts[few].sum()[None]])
    expected = torch.cat([expected[~few], expected[few].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) == 1:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


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


# What a drafter knows of the target's distributions [nodes, V] -> what it draws from; None for one that chooses.
DRAFTERS = {
    "exact": lambda target: target,
    "good": lambda target: 0.8 * target + 0.2 / VOCABULARY,
    "bad": lambda target: (1.01 - target) / (1.01 - target).sum(-1, keepdim=True),
    # All but a thousandth on what the target gives least, 0 under truncation.
    "adversarial": lambda target: 1e-3 / VOCABULARY + 0.999 * torch.eye(VOCABULARY).double()[target.argmin(-1)],
    "narrow": lambda target: torch.eye(VOCABULARY).double()[target.argmax(-1)],  # mass for one child: others are chosen
    "chosen": None,
}


class Tables:
    """Distributions of the model and of a drafter for every pair of last tokens."""

    def __init__(self, drafter, sampling):
        contexts = torch.tensor(list(itertools.product(range(START + 1), repeat=2)))
        self.target = model(contexts, sampling).reshape(START + 1, START + 1, VOCABULARY)
        make = DRAFTERS[drafter]
        self.draft = None if make is None else make(self.target)
        self.draft_rows = None if make is None else self.draft.numpy()


def propose(tables, context, width, depth, rng):
    """A tree with `width` children at each inner node -> DraftTree, and the context of each node."""
    tokens, parents, contexts, drafts = [context[1]], [-1], [context], {}

    def grow(node, levels):
        if levels == 0:
            return
        context = contexts[node]
        if tables.draft is None:
            # Always the same at a place: over random candidates some errors would average out.
            children = (np.arange(width) * 3 + context[0] + 2 * context[1]) % VOCABULARY
        else:
            # The largest of log q + Gumbel noise, in order: draws without replacement, by another way than ours.
            with np.errstate(divide="ignore"):
                keys = np.log(tables.draft_rows[context]) + rng.gumbel(size=VOCABULARY)
            children = np.argsort(-keys, kind="stable")[:width]
            drafts[node] = tables.draft[context]
        for token in children.tolist():
            tokens.append(token)
            parents.append(node)
            contexts.append((context[1], token))
            grow(len(tokens) - 1, levels - 1)

    grow(0, depth)
    return DraftTree(tokens, parents, drafts), contexts


def sample_sequences(tables, width, depth, seed, samples):
    """int64 [samples]: the first LENGTH tokens that speculation emits, as digits of a number."""
    rng = np.random.default_rng(seed)
    uniforms = uniform(seed, torch.arange(samples)[:, None], torch.arange(LENGTH + depth), draws=width + 1)
    codes = []
    for sample in range(samples):
        tokens = []
        while len(tokens) < LENGTH:
            context = tuple(([START, START, *tokens])[-2:])
            tree, contexts = propose(tables, context, width, depth, rng)
            rows = torch.tensor(contexts)
            verified = verify(tree, tables.target[rows[:, 0], rows[:, 1]], uniforms[sample, len(tokens) :])
            tokens += [tree.tokens[node] for node in verified.path] + [verified.token]
        codes.append(sum(token * VOCABULARY**place for place, token in enumerate(tokens[:LENGTH])))
    return torch.tensor(codes)


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
    ("chosen", TOP_TWO, 3, 1),
    ("chosen", NUCLEUS, 1, 3),
    # temperature, chains, and the widest and deepest
    ("good", COOL, 1, 3),
    ("chosen", COOL, 3, 1),
    ("good", COOL, 2, 3),
]


@pytest.mark.parametrize(("drafter", "sampling", "width", "depth"), SETTINGS)
def test_sequences_have_the_targets_distribution(drafter, sampling, width, depth):
    # Seeds are fixed, so this cannot flicker; 1e-3 for 15 settings.
    assert p_value(drafter, sampling, width, depth) > 1e-3


def keep_the_target(residual, token):
    if residual.draft is not None:
        residual.draft = residual.draft.index_fill(0, torch.tensor(token), 0)
        residual.draft_mass = float(residual.draft.sum())


def keep_the_draft(residual, token):
    residual.target = (residual.target / residual.target_mass - residual.draft).clamp(min=0)
    residual.target_mass = float(residual.target.sum())


# What is wrong, and a setting in which it shows.
WRONG = {
    "no residual": ("reject", keep_the_target, ("bad", PLAIN, 2, 2)),
    "no residual of a chosen child": ("reject", keep_the_target, ("chosen", PLAIN, 1, 3)),
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
