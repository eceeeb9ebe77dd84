"""`verify`: which tokens of a draft tree are kept, so that what is emitted has exactly the target's distribution.

Speculative sampling (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023; Chen et al.,
Accelerating Large Language Model Decoding with Speculative Sampling, 2023), at each node recursively over its children
(Miao et al., SpecInfer, 2024), which are drawn without replacement (Jeon et al., Recursive Speculative Decoding, 2024;
Chen et al., Sequoia, 2024).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from regrow.rollout.sampling import draw


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Tokens that may come next, as a tree in preorder; node 0 is the root, the last token that the sequence has.

    draft_probabilities: for a node, the distribution [V] that its children were drawn from, one after the other and
    without replacement, in their order here. A node that is missing has deterministic children: candidates chosen by
    whatever does not look at the target's random numbers. A root alone is an empty draft.

    Raises ValueError for tokens and parents that are no tree in preorder, and for siblings of the same token.

    >>> DraftTree(tokens=[5, 7, 2, 8], parents=[-1, 0, 1, 0]).children
    [[1, 3], [2], [], []]
    """

    tokens: list[int]
    parents: list[int]
    draft_probabilities: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        for name in ("tokens", "parents"):
            value = getattr(self, name)
            object.__setattr__(self, name, value.tolist() if isinstance(value, torch.Tensor) else list(value))
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise ValueError(
                f"{len(self.tokens)} tokens and {len(self.parents)} parents, must be as many and at least the root: "
                "give a parent to each token, -1 to the first"
            )
        self._check_preorder()
        for node, children in enumerate(self.children):
            tokens = [self.tokens[child] for child in children]
            twice = next((token for token in tokens if tokens.count(token) > 1), None)
            if twice is not None:
                raise ValueError(
                    f"node {node} has more than one child of token {twice}: draw without replacement, or merge them"
                )
        strangers = [node for node in self.draft_probabilities if not 0 <= node < len(self.tokens)]
        if strangers:
            raise ValueError(
                f"draft_probabilities has node {strangers[0]}, the tree has nodes 0 to {len(self.tokens) - 1}: "
                "key each distribution by the node whose children were drawn from it"
            )

    def _check_preorder(self):
        path = []
        for node, parent in enumerate(self.parents):
            while path and path[-1] != parent:
                path.pop()
            if not path and (node > 0 or parent != -1):
                raise ValueError(
                    f"node {node} has parent {parent}, which must be "
                    + ("-1: node 0 is the root" if node == 0 else f"{node - 1} or an ancestor of it: sort in preorder")
                )
            path.append(node)

    @classmethod
    def chain(cls, last_token, tokens, draft_probabilities=None):
        """A draft without branches; draft_probabilities [len(tokens), V]: what each was drawn from, None if chosen."""
        drawn_from = {} if draft_probabilities is None else dict(enumerate(draft_probabilities))
        return cls([last_token, *tokens], list(range(-1, len(tokens))), drawn_from)

    @cached_property
    def children(self):
        """For each node the list of its children, in order."""
        children = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return children

    @cached_property
    def uniforms_shape(self):
        """(positions, draws) that `verify` may need: (depth + 1, width + 1), width the most children of one node."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return max(depths) + 1, max(len(children) for children in self.children) + 1


@dataclass(frozen=True)
class Verified:
    """The nodes that were accepted, root not included, each the child of the one before; and the token after them."""

    path: list[int]
    token: int


def verify(tree, target_probabilities, uniforms):
    """Accepts a path of the draft and draws one token more, distributed as if each were drawn from the target.

    target_probabilities: [nodes, V], row i for the token after node i. uniforms: [positions, draws] in [0, 1), at
    least `tree.uniforms_shape`; row d decides the token d + 1 after the root: column 0 draws where no child is
    accepted, column 1 + i accepts or rejects the i-th child. So an empty draft draws as decoding without speculation.
    They must be independent of what drew the draft (see the streams of `sampling.uniform`).

    At greedy's one-hot rows a child is accepted if it is the target's token, whatever the uniforms are.

    Raises ValueError for shapes that do not fit, a drafted token outside the vocabulary, and distributions that are
    negative, not finite, or, the target's, without mass.

    >>> verify(DraftTree.chain(5, [1, 0]), torch.tensor([[0.0, 1], [1, 0], [0, 1]]), torch.zeros(3, 2))
    Verified(path=[1, 2], token=1)
    """
    _check(tree, target_probabilities, uniforms)
    node, path = 0, []
    while True:
        residual = Residual(target_probabilities[node], tree.draft_probabilities.get(node))
        draws = uniforms[len(path)].tolist()
        accepted = None
        for child, number in zip(tree.children[node], draws[1:], strict=False):
            token = tree.tokens[child]
            if number < residual.acceptance(token):
                accepted = child
                break
            residual.reject(token)
        if accepted is None:
            return Verified(path, int(draw(residual.target[None], uniforms[len(path), :1])))
        path.append(accepted)
        node = accepted


class Residual:
    """What one node's next token must be drawn from, given the children that were rejected: the target's remainder.

    target: [V], weights. draft: [V], weights, what the children are drawn from; None where they are deterministic.
    A child that the draft gives no mass cannot have been drawn from it and counts as deterministic.

    Weights are not rescaled until it must be: a chosen child that is accepted costs one sum over the vocabulary.
    """

    def __init__(self, target, draft=None):
        self.target, self.target_mass = target.detach(), _mass("target", target)
        if self.target_mass == 0:
            raise ValueError("a node's target probabilities are all 0: leave each row a token that may be drawn")
        self.draft, self.draft_mass = None, 0.0
        if draft is not None:
            self.draft, self.draft_mass = draft.detach(), _mass("draft", draft)

    def acceptance(self, token):
        """The probability that this child, the next, is accepted."""
        share = float(self.target[token]) / self.target_mass
        return min(1.0, share / (float(self.draft[token]) / self.draft_mass)) if self._was_drawn(token) else share

    def reject(self, token):
        """Takes away from the target what the child stood for, and the child from what its siblings are drawn from."""
        if self._was_drawn(token):
            left = (self.target.double() / self.target_mass - self.draft.double() / self.draft_mass).clamp_(min=0)
            self.draft = _without(self.draft, token)
            self.draft_mass = _sum(self.draft)
        else:
            left = _without(self.target, token)
        mass = _sum(left)
        if (
            mass > 0
        ):  # else target and draft agree but for rounding, and so the rejection was rounding's: keep the target
            self.target, self.target_mass = left, mass

    def _was_drawn(self, token):
        return self.draft is not None and float(self.draft[token]) > 0


def _without(weights, token):
    weights = weights.clone()
    weights[token] = 0
    return weights


def _sum(weights):
    return float(weights.sum(dtype=torch.float64))


def _mass(name, weights):
    least, mass = float(weights.amin()), _sum(weights)
    if not (least >= 0 and math.isfinite(mass)):
        raise ValueError(
            f"a node's {name} probabilities have a minimum of {least} and a sum of {mass}, "
            "must be finite and not negative: pass probabilities, not logits"
        )
    return mass


def _check(tree, target_probabilities, uniforms):
    num_nodes = len(tree.tokens)
    if target_probabilities.dim() != 2 or len(target_probabilities) != num_nodes:
        raise ValueError(
            f"target_probabilities are {list(target_probabilities.shape)}, must be [{num_nodes}, V]: a row per node"
        )
    vocabulary = target_probabilities.size(1)
    for node, token in enumerate(tree.tokens[1:], start=1):
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"node {node} is token {token}, the target's vocabulary has {vocabulary}: "
                "draft with the target's tokenizer"
            )
    for node, draft in tree.draft_probabilities.items():
        if draft.shape != (vocabulary,):
            raise ValueError(
                f"draft_probabilities of node {node} are {list(draft.shape)}, must be [{vocabulary}]: "
                "spread them over the target's vocabulary"
            )
    positions, draws = tree.uniforms_shape
    if uniforms.dim() != 2 or uniforms.size(0) < positions or uniforms.size(1) < draws:
        raise ValueError(
            f"uniforms are {list(uniforms.shape)}, must be at least [{positions}, {draws}]: see tree.uniforms_shape"
        )
