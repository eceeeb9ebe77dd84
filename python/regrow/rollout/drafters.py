"""What a drafter is: the state it sees, the draft it gives, and the one check of drafts."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_SUM_TOLERANCE = 1e-2  # bf16 probabilities of a large vocabulary sum to 1 no better


@dataclass(frozen=True, slots=True)
class DraftState:
    """Where a sequence stands, and how large a draft may be."""

    sequence: Hashable  # the id that `begin` got
    tokens: Sequence[int]  # prompt and response so far
    max_tokens: int  # how many tokens may be verified; fewer than asked for near the end of the sequence
    depth: int  # the longest path wished
    width: int = 1  # the most children wished at a node; 1 asks for a chain
    hidden: Any = None  # [H]: the hidden state from which the last token was drawn, so that of the token before it


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of candidate tokens in depth-first preorder, below the last accepted token. No tokens: don't speculate.

    `parents[i]` is the node above node `i`, -1 for the last accepted token; siblings stand in the order in which they
    are to be tried, which for a sampled drafter is the order in which they were drawn.

    Sampled drafts, those with `distributions`, leave the target's distribution as it is if each token that was drawn
    is proposed whatever it is. Whether a node is a child at all may depend on the tokens above it and on its rank among
    its siblings, never on its own token or on what was drawn below it: a drafter must not throw away drawn tokens for
    their low probability. Draws use DRAFT_STREAM of `sampling.uniform`, which is independent of what `verify` gets.
    Without distributions the tokens may be chosen in any way.

    >>> Draft(parents=[-1, 0, 0], tokens=[5, 6, 7]).path(2)
    [5, 7]
    """

    parents: Sequence[int] = ()
    tokens: Sequence[int] = ()
    scores: Sequence[float] | None = None  # estimated probability that a node and those above it are accepted
    # For sampled drafters: from a node with children (or -1) to the probabilities [vocabulary] from which the first of
    # them was drawn; the others were drawn without replacement. None: the tokens are a function of the state.
    distributions: Mapping[int, Any] | None = None

    @classmethod
    def chain(cls, tokens, scores=None, distributions=None):
        """The draft without branches."""
        return cls(range(-1, len(tokens) - 1), tokens, scores, distributions)

    def __len__(self):
        return len(self.tokens)

    @property
    def children(self):
        """From each node, -1 included, to the list of its children, in order."""
        children = {node: [] for node in range(-1, len(self))}
        for node, parent in enumerate(self.parents):
            children[parent].append(node)
        return children

    @property
    def depths(self):
        """The number of tokens on the path to each node: 1 for children of -1."""
        depths = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    @property
    def draws(self):
        """How many random numbers `verify` needs for a position: 1, and one for each child that was drawn at a node."""
        if not self.distributions:
            return 1
        drawn = Counter(parent for parent in self.parents if parent in self.distributions)
        return 1 + max(drawn.values(), default=0)

    def path(self, node):
        """The tokens from the last accepted one, left out, to the node."""
        tokens = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def keep(self, nodes):
        """The draft of these nodes alone, with their scores and the distributions that still have children.

        Raises ValueError unless the nodes ascend, each comes with its parent, and each drawn one with the siblings that
        were drawn before it, since it was drawn from what they left.

        >>> Draft(parents=[-1, 0, 0], tokens=[5, 6, 7]).keep([0, 2])
        Draft(parents=[-1, 0], tokens=[5, 7], scores=None, distributions=None)
        """
        nodes = list(nodes)
        _check_kept(self, nodes)
        number = {node: index for index, node in enumerate([-1, *nodes], start=-1)}  # from the old to the new
        parents = [self.parents[node] for node in nodes]
        distributions = self.distributions
        if distributions is not None:
            distributions = {number[node]: distributions[node] for node in sorted(distributions.keys() & set(parents))}
        return Draft(
            [number[parent] for parent in parents],
            [self.tokens[node] for node in nodes],
            None if self.scores is None else [self.scores[node] for node in nodes],
            distributions,
        )

    @property
    def expected_accepted(self):
        """The estimated number of accepted tokens, or None without scores: what a caller weighs against the cost."""
        return None if self.scores is None else sum(self.scores)


def _check_kept(draft, nodes):
    if nodes and not (nodes[0] >= 0 and nodes[-1] < len(draft) and all(a < b for a, b in pairwise(nodes))):
        raise ValueError(f"nodes are {nodes!r:.80}, the draft has {len(draft)}: give some of them, each once, sorted")
    kept, left_out = {-1, *nodes}, {}  # left_out: from a node to the first of its children that is not kept
    for node, parent in enumerate(draft.parents):
        if node not in kept:
            left_out.setdefault(parent, node)
        elif parent not in kept:
            raise ValueError(f"node {node} is kept, its parent {parent} is not: keep the path to each node")
        elif draft.distributions is not None and parent in draft.distributions and parent in left_out:
            raise ValueError(
                f"node {node} is kept, its sibling {left_out[parent]} is not, and they were drawn in this order: "
                "leave out the last ones first"
            )


class Drafter(ABC):
    """Proposes tokens that the model verifies. The engine calls, per sequence: begin, (propose, observe)*, finish.

    A drafter that samples gives the distributions, draws with DRAFT_STREAM of `sampling.uniform` and proposes what it
    drew, whatever it is: whether there is a child may depend on the tokens above it and on its rank, never on its own
    token (see `Draft`).

    Hidden states are aligned to what they predict: the row beside a token is the state from which that token was drawn,
    so that of the token before it. A layer that predicts from (token t+1, hidden t) reads the rows as they come.
    """

    vocabulary: int | None = None  # number of token ids; the engine refuses a drafter of another vocabulary. None: any
    wants_hidden = False  # whether begin, observe and DraftState carry hidden states

    def begin(self, sequence, prompt, hidden=None):  # noqa: B027 (many have nothing to begin)
        """A new sequence: its id, prompt [P], and hidden states [P - 1, H], row `i` beside token `prompt[i + 1]`."""

    @abstractmethod
    def propose(self, state):
        """DraftState -> Draft of at most `state.max_tokens` tokens, `state.depth` deep, `state.width` wide."""

    def propose_batch(self, states):
        """A list of DraftState -> their drafts, in order. A drafter that is a model overrides this with one forward."""
        return [self.propose(state) for state in states]

    @abstractmethod
    def observe(self, sequence, tokens, hidden=None):
        """Newly accepted tokens [n] of a sequence, drafted or not; hidden [n, H], row `i` beside `tokens[i]`."""

    def finish(self, sequence):  # noqa: B027
        """The sequence has ended; its id may be used again."""


def check_hidden(tokens, hidden, missing=0):
    """ValueError unless `hidden` is None or has one row per token, but for the first `missing` tokens."""
    rows = max(len(tokens) - missing, 0)
    if hidden is not None and (len(hidden.shape) != 2 or hidden.shape[0] != rows):
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)} for {len(tokens)} tokens: give [{rows}, H], each row the state "
            "from which its token was drawn"
        )


def check_draft(draft, state, vocabulary):
    """The draft as it came. ValueError unless it is a tree in preorder within the limits of the state.

    Checks: as many parents (and scores) as tokens, parents on the path of the node before (so before their children),
    distinct siblings, tokens inside the vocabulary, at most `state.max_tokens`, `state.depth` and `state.width`; scores
    in [0, 1] that do not grow on the way down; a distribution at each node with children, that could draw each of them.
    """
    if not isinstance(draft, Draft):
        raise ValueError(f"a draft is a {type(draft).__name__}: give a Draft, an empty one not to speculate")
    num_tokens = len(draft.tokens)
    if len(draft.parents) != num_tokens:
        raise ValueError(
            f"the draft has {num_tokens} tokens and {len(draft.parents)} parents: give each token its parent"
        )
    if num_tokens > state.max_tokens:
        raise ValueError(
            f"the draft has {num_tokens} tokens, max_tokens is {state.max_tokens}: leave out the least likely ones"
        )
    _check_tree(draft, state, vocabulary)
    if draft.scores is not None:
        _check_scores(draft)
    if draft.distributions is not None:
        _check_distributions(draft, vocabulary)
    return draft


def _check_tree(draft, state, vocabulary):
    path, children = [-1], {}  # path: -1, then the nodes from the first level down to the node before
    for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"node {node} has token {token}, the vocabulary {vocabulary} tokens: use a drafter of the "
                "model's vocabulary"
            )
        while path and path[-1] != parent:
            path.pop()
        if not path:
            raise ValueError(
                f"node {node} has parent {parent}: list the tree in preorder, so that a parent is -1, or node "
                f"{node - 1} or above it"
            )
        if len(path) > state.depth:
            raise ValueError(
                f"node {node} is at depth {len(path)}, the depth asked for is {state.depth}: end the path there"
            )
        siblings = children.setdefault(parent, set())
        if token in siblings:
            raise ValueError(
                f"node {node} is token {token}, as a sibling below node {parent} is: draw without replacement, "
                "or merge them"
            )
        siblings.add(token)
        if len(siblings) > state.width:
            raise ValueError(
                f"node {parent} has more than {state.width} children, the width asked for: keep the likeliest"
            )
        path.append(node)


def _check_scores(draft):
    if len(draft.scores) != len(draft.tokens):
        raise ValueError(
            f"the draft has {len(draft.tokens)} tokens and {len(draft.scores)} scores: score each, or none"
        )
    for node, (parent, score) in enumerate(zip(draft.parents, draft.scores, strict=True)):
        above = 1 if parent < 0 else draft.scores[parent]
        if not 0 <= score <= above:
            raise ValueError(
                f"node {node} has score {score} below {above}: give the probability that the whole path is accepted"
            )


def _check_distributions(draft, vocabulary):
    given, needed = set(draft.distributions), set(draft.parents)
    if given != needed:
        raise ValueError(
            f"distributions at nodes {sorted(given)}, children below nodes {sorted(needed)}: give one for each node "
            "with children"
        )
    for node, distribution in draft.distributions.items():
        if tuple(distribution.shape) != (vocabulary,):
            raise ValueError(
                f"the distribution at node {node} has shape {tuple(distribution.shape)}: give [{vocabulary}] "
                "probabilities"
            )
        total = float(distribution.sum())
        if not abs(total - 1) <= _SUM_TOLERANCE or float(distribution.min()) < 0:
            raise ValueError(
                f"the distribution at node {node} sums to {total:.4g}, its least is {float(distribution.min()):.4g}: "
                "give probabilities, not logits"
            )
    for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if not float(draft.distributions[parent][token]) > 0:
            raise ValueError(
                f"node {node} is token {token}, to which the distribution at node {parent} gives 0: it must be the one "
                "that the token was drawn from"
            )
