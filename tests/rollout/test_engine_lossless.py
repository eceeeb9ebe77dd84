"""Whole rollouts have the model's distribution: chi-square against enumeration, whatever drafts and truncates."""

import itertools
import zlib

import pytest
import torch

from chi_square import chi_square_p_value
from regrow.rollout import Draft, Drafter, Strategy, generate
from regrow.rollout.next_tokens import NextTokens
from regrow.rollout.sampling import DRAFT_STREAM, TARGET_STREAM, draw_without_replacement, uniform
from regrow.rollout.verify import Residual
from tiny_policy import TinyPolicy, truncated

VOCABULARY, LENGTH = 5, 4  # tokens of a response whose distribution is compared; the first is drawn without drafts
NEW_TOKENS = 8  # of a response: room for a tree behind the first
PROMPTS = [[0, 1, 2, 0, 1], [0, 1, 2, 3]]  # a shared beginning; the suffix drafter knows what follows 0 1
SAMPLES = 900  # of each prompt


class Tables:
    """The distributions of the model after every beginning of a response, fp64 [beginnings, V] for each prompt."""

    def __init__(self, model, **options):
        self.beginnings = [
            beginning for length in range(LENGTH) for beginning in itertools.product(range(VOCABULARY), repeat=length)
        ]
        self.row = {beginning: row for row, beginning in enumerate(self.beginnings)}
        self.target = torch.stack([self._rows(model, prompt, options) for prompt in PROMPTS])

    def _rows(self, model, prompt, options):
        texts = [[*prompt, *beginning] for beginning in self.beginnings]
        return torch.tensor([truncated(model.logits_alone(text)[-1], **options) for text in texts], dtype=torch.float64)

    def sequences(self, prompt):
        """fp64 [V ** LENGTH], by enumeration."""
        probabilities = torch.ones(1, dtype=torch.float64)
        for length in range(LENGTH):
            rows = [self.row[text] for text in itertools.product(range(VOCABULARY), repeat=length)]
            probabilities = (probabilities[:, None] * self.target[prompt, rows]).flatten()
        return probabilities


# What a drafter knows of the target's distributions [..., V] -> what it draws from.
DISTRIBUTIONS = {
    "exact": lambda target: target,
    "good": lambda target: 0.8 * target + 0.2 / VOCABULARY,
    "bad": lambda target: (1.01 - target) / (1.01 - target).sum(-1, keepdim=True),
    # All but a thousandth on what the target gives least, 0 under truncation.
    "adversarial": lambda target: 1e-3 / VOCABULARY + 0.999 * torch.eye(VOCABULARY).double()[target.argmin(-1)],
    "narrow": lambda target: torch.eye(VOCABULARY).double()[target.argmax(-1)],  # mass for one child
    "chosen": lambda target: target,  # its likeliest tokens, without drawing
}


class Sampled(Drafter):
    """Trees whose children are drawn without replacement, all of the batch level by level; as many levels as are known
    and have room if every node has `width` children, so whatever is drawn."""

    vocabulary = VOCABULARY

    def __init__(self, tables, name, seed, stream=DRAFT_STREAM):
        self.row, self.rows = tables.row, DISTRIBUTIONS[name](tables.target)
        self.seed, self.stream, self.draws = seed, stream, name != "chosen"

    def observe(self, sequence, tokens, hidden=None):
        pass

    def propose(self, state):
        return self.propose_batch([state])[0]

    def propose_batch(self, states):
        below = [{} for _ in states]  # path of tokens -> tokens of its children
        texts = [tuple(state.tokens[len(PROMPTS[self._prompt(state)]) :]) for state in states]
        depths = [self._depth(*pair) for pair in zip(states, texts, strict=True)]
        level = [(index, ()) for index in range(len(states))]
        for depth in range(max(depths)):
            level = [(i, path) for i, path in level if depth < depths[i]]
            if not level:
                break
            rows = torch.stack([self._distribution(states[i], texts[i] + path) for i, path in level])
            numbers = uniform(
                self.seed,
                torch.tensor([states[i].sequence for i, _ in level]),
                torch.tensor([len(texts[i]) + depth for i, _ in level]),
                draws=states[0].width,
                stream=self.stream,
            )
            children = draw_without_replacement(rows, numbers) if self.draws else rows.topk(states[0].width).indices
            children = children.tolist()
            for (i, path), drawn in zip(level, children, strict=True):
                below[i][path] = [token for token in drawn if token >= 0]
            level = [(i, (*path, token)) for i, path in level for token in below[i][path]]
        return [self._tree(*triple) for triple in zip(states, texts, below, strict=True)]

    def _depth(self, state, text):
        levels = [depth for depth in range(1 + state.depth) if full_tree(depth, state.width) <= state.max_tokens]
        return max(0, min(levels[-1], LENGTH - len(text)))

    def _prompt(self, state):
        return state.sequence // SAMPLES

    def _distribution(self, state, text):
        return self.rows[self._prompt(state), self.row[text]]

    def _tree(self, state, text, below):
        parents, tokens, distributions = [], [], {}

        def grow(node, path):
            for token in below.get(path, ()):
                distributions[node] = self._distribution(state, text + path)
                parents.append(node)
                tokens.append(token)
                grow(len(tokens) - 1, (*path, token))

        grow(-1, ())
        return Draft(parents, tokens, None, distributions if self.draws else None)


def full_tree(depth, width):
    return sum(width ** (1 + level) for level in range(depth))


def p_values(drafter, depth, width, make=Sampled, **options):
    """Of each prompt's sequences, and the rollout."""
    model = TinyPolicy(VOCABULARY, sharp=1.5)
    tables = Tables(model, **options)
    seed = zlib.crc32(f"{drafter} {depth} {width} {options}".encode())
    if drafter in DISTRIBUTIONS:
        drafter = make(tables, drafter, seed)
    rollout = generate(
        model, PROMPTS, SAMPLES, max_new_tokens=NEW_TOKENS, seed=seed, drafter=drafter,
        strategy=None if drafter is None else Strategy(depth, width, full_tree(depth, width)),
        **options,
    )  # fmt: skip
    texts = torch.stack(rollout.responses())[:, :LENGTH].reshape(len(PROMPTS), SAMPLES, LENGTH)
    digits = (texts * VOCABULARY ** torch.arange(LENGTH - 1, -1, -1)).sum(-1)
    return [
        chi_square_p_value(row.bincount(minlength=VOCABULARY**LENGTH).double(), tables.sequences(prompt) * SAMPLES)
        for prompt, row in enumerate(digits)
    ], rollout


SETTINGS = [
    # no drafter, each way to truncate
    (None, 0, 1, {}),
    (None, 0, 1, dict(temperature=0.6, top_p=0.8)),
    (None, 0, 1, dict(top_k=2)),
    (None, 0, 1, dict(temperature=1.5, top_k=4, top_p=0.9)),
    # drafts without distributions
    ("suffix", 2, 2, dict(temperature=1.5, top_p=0.9)),
    ("chosen", 2, 2, {}),
    # drafts that are drawn: siblings and grandchildren
    ("exact", 2, 2, {}),
    ("good", 2, 2, {}),
    ("bad", 2, 2, {}),
    ("adversarial", 2, 2, {}),
    ("narrow", 2, 2, {}),
    # and truncation, where draws meet tokens of probability 0; chains
    ("good", 2, 1, dict(temperature=0.6)),
    ("good", 1, 3, dict(temperature=1.5, top_k=4, top_p=0.9)),
    ("bad", 2, 2, dict(top_k=2)),
    ("adversarial", 2, 2, dict(top_p=0.8)),
]


@pytest.mark.parametrize(("drafter", "depth", "width", "options"), SETTINGS)
def test_sequences_have_the_models_distribution(drafter, depth, width, options):
    values, rollout = p_values(drafter, depth, width, **options)
    assert min(values) > 5e-4  # seeds are fixed, so this cannot flicker; 30 values
    if drafter is not None:
        assert rollout.stats.drafted > 0 and rollout.stats.accepted > 0


def reject_nothing(residual, token):
    residual.draft = residual.draft.index_fill(0, torch.tensor(token), 0)
    residual.draft_mass = float(residual.draft.sum())


def one_position(next_tokens, drafts, sequences, positions):
    """The numbers of a draft's nodes are those of its root."""
    counts = torch.tensor([1 + len(draft) for draft in drafts])
    rows = (torch.tensor(values).repeat_interleave(counts) for values in (sequences, positions))
    return uniform(next_tokens.seed, *rows, max(draft.draws for draft in drafts))


class OnTheTargetsStream(Sampled):
    def __init__(self, tables, name, seed):
        super().__init__(tables, name, seed, TARGET_STREAM)


# What is wrong, and a setting in which it shows.
WRONG = {
    "the target stays after a rejection": ((Residual, "reject", reject_nothing), ("bad", 2, 2), {}),
    "always accepted": ((Residual, "acceptance", lambda residual, token: 1.0), ("good", 2, 2), {}),
    "nodes share a random number": ((NextTokens, "_uniforms", one_position), ("chosen", 2, 2), {}),
    "drafts share the target's numbers": ((), ("bad", 2, 1, OnTheTargetsStream), dict(temperature=2.0)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rollouts_are_caught(wrong, monkeypatch):
    patch, setting, options = WRONG[wrong]
    if patch:
        monkeypatch.setattr(*patch)
    values, _ = p_values(*setting, **options)
    assert min(values) < 1e-5
