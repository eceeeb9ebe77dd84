"""`verify`: which tokens of a draft are kept, so that what is emitted has exactly the target's distribution.

Sampled drafts: speculative sampling (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023;
Chen et al., Accelerating Large Language Model Decoding with Speculative Sampling, 2023), at each node recursively over
its children (Miao et al., SpecInfer, 2024), which are drawn without replacement (Jeon et al., Recursive Speculative
Decoding, 2024; Chen et al., Sequoia, 2024). Other drafts: the target's token is drawn first and looked up.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

import torch

from regrow.rollout.sampling import draw


@dataclass(frozen=True)
class Verified:
    """The nodes that were accepted, from the first level down, as the draft numbers them; and the token after them."""

    path: list[int]
    token: int


@torch.no_grad()
def verify(drafts, probabilities, uniforms):
    """Accepts a path of each draft and draws one token more, distributed as if the target drew each: -> [Verified].

    drafts: a list of `Draft` that `check_draft` passed. probabilities: weights [R, V], for each draft in order the row
    of its last accepted token (node -1), then one per node; so R = sum(1 + len(draft)). uniforms: fp64 [R, draws] in
    [0, 1), each row the numbers of the position that follows the row's token, so rows at equal depth of a draft hold
    equal numbers; draws at least the largest `Draft.draws`. What drew the drafts must be independent of them.

    At a node without a distribution, column 0 draws the target's token by the inverse CDF, and the child that has it,
    if any, is accepted. So a draft without distributions emits the tokens that decoding without speculation draws,
    whatever was drafted. At a node with one, column 1 + i accepts or rejects child i, and column 0 draws from what is
    left if all are rejected: the distribution is the target's, the tokens are others.

    Raises ValueError for shapes that do not fit, uniforms outside [0, 1), a drafted token outside the vocabulary, a
    target row that is negative, not finite or without mass; and, where a node is reached, for such a distribution and
    for a child that it gives no mass.

    >>> from regrow.rollout.drafters import Draft
    >>> verify([Draft.chain([1, 0])], torch.tensor([[0.0, 1], [1, 0], [0, 1]]), torch.zeros(3, 1))
    [Verified(path=[0, 1], token=1)]
    """
    *first_rows, num_rows = accumulate((1 + len(draft) for draft in drafts), initial=0)
    _check_shapes(drafts, num_rows, probabilities, uniforms)
    _check_values(first_rows, probabilities, uniforms)
    drawn = _draw_plain(drafts, first_rows, probabilities, uniforms)
    numbers = uniforms.tolist() if any(draft.distributions for draft in drafts) else None
    walks = [
        _walk(draft, first_row, probabilities, drawn, numbers)
        for draft, first_row in zip(drafts, first_rows, strict=True)
    ]
    rejected = [(row, left) for _, row, left in walks if left is not None]
    if rejected:
        rows, left = zip(*rejected, strict=True)
        column = uniforms[list(rows), 0].to(probabilities.device)
        drawn.update(zip(rows, draw(torch.stack([weights.double() for weights in left]), column).tolist(), strict=True))
    return [Verified(path, drawn[row]) for path, row, _ in walks]


def _draw_plain(drafts, first_rows, probabilities, uniforms):
    """Row -> the target's token, for each row of a node whose children, if any, were not drawn from a distribution."""
    sampled = {
        first_row + 1 + node
        for draft, first_row in zip(drafts, first_rows, strict=True)
        for node in draft.distributions or ()
    }
    rows, column = range(len(probabilities)), uniforms[:, 0].contiguous()
    if sampled:
        rows = [row for row in rows if row not in sampled]
        probabilities, column = probabilities[rows], column[rows]
    return dict(zip(rows, draw(probabilities, column.to(probabilities.device)).tolist(), strict=True))


def _walk(draft, first_row, probabilities, drawn, numbers):
    """-> the accepted path, the row after it, and, if its token is not among `drawn`, what it must be drawn from."""
    children, distributions = draft.children, draft.distributions or {}
    node, path = -1, []
    while True:
        row, left = first_row + 1 + node, None
        if node in distributions:
            residual = Residual(probabilities[row], distributions[node])
            accepted = _accept(residual, draft.tokens, children[node], numbers[row][1:])
            left = residual.target
        else:
            accepted = _find(draft.tokens, children[node], drawn[row])
        if accepted is None:
            return path, row, left
        path.append(accepted)
        node = accepted


def _find(tokens, children, token):
    """The child that has the token."""
    return next((child for child in children if tokens[child] == token), None)


def _accept(residual, tokens, children, numbers):
    """The first child that its number accepts; those before it are rejected from the residual."""
    for child, number in zip(children, numbers, strict=False):
        if number < residual.acceptance(tokens[child]):
            return child
        residual.reject(tokens[child])
    return None


class Residual:
    """What one node's next token must be drawn from, given the children that were rejected: the target's remainder.

    target: [V], weights. draft: [V], weights, what the next child is drawn from. Both stay as they are.

    Weights are not rescaled until it must be: where the first child is accepted, nothing of the vocabulary is written.
    """

    def __init__(self, target, draft):
        self.target, self.draft = target, draft
        self.target_mass, self.draft_mass, least = _floats(_sum(target), _sum(draft), draft.amin())
        if not (least >= 0 and 0 < self.draft_mass < math.inf):
            raise ValueError(
                f"a draft's distribution has a minimum of {least} and a sum of {self.draft_mass}, must be positive and "
                "finite: give probabilities, not logits"
            )

    def acceptance(self, token):
        """The probability that this child, the next, is accepted."""
        target, draft = _floats(self.target[token], self.draft[token])
        if draft == 0:
            raise ValueError(
                f"token {token} was drafted, but the distribution, less its siblings, gives it 0: it must be the one "
                "that the token was drawn from, without replacement"
            )
        return min(1.0, target / self.target_mass * self.draft_mass / draft)

    def reject(self, token):
        """Takes the draft away from the target, and the child from what its siblings are drawn from."""
        left = (self.target.double() / self.target_mass).sub_(self.draft.double() / self.draft_mass).clamp_(min=0)
        self.draft = self.draft.index_fill(0, torch.tensor(token, device=self.draft.device), 0)
        mass, self.draft_mass = _floats(_sum(left), _sum(self.draft))
        # Else target and draft agree but for rounding, and so the rejection was rounding's: keep the target.
        if mass > 0:
            self.target, self.target_mass = left, mass


def _sum(weights):
    return weights.sum(dtype=torch.float64)


def _floats(*scalars):
    """Reads tensors without dimensions at once."""
    return torch.stack([scalar.double() for scalar in scalars]).tolist()


def _check_shapes(drafts, num_rows, probabilities, uniforms):
    if probabilities.dim() != 2 or len(probabilities) != num_rows or probabilities.size(1) == 0:
        raise ValueError(
            f"probabilities are {list(probabilities.shape)}, must be [{num_rows}, V]: for each draft a row for the "
            "last accepted token, then one for each node"
        )
    draws = max((draft.draws for draft in drafts), default=1)
    if uniforms.dim() != 2 or len(uniforms) != num_rows or uniforms.size(1) < draws:
        raise ValueError(
            f"uniforms are {list(uniforms.shape)}, must be [{num_rows}, {draws}] or wider: a row for each of the "
            "probabilities, and as many numbers as `Draft.draws` says"
        )
    vocabulary = probabilities.size(1)
    for index, draft in enumerate(drafts):
        for node, token in enumerate(draft.tokens):
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"node {node} of draft {index} is token {token}, the target's vocabulary has {vocabulary}: "
                    "draft with the target's tokenizer"
                )
        for node, distribution in (draft.distributions or {}).items():
            if not -1 <= node < len(draft):
                raise ValueError(
                    f"draft {index} has a distribution at node {node}, its nodes are -1 to {len(draft) - 1}: "
                    "key each by the node whose children were drawn from it"
                )
            if tuple(distribution.shape) != (vocabulary,):
                raise ValueError(
                    f"the distribution at node {node} of draft {index} is {list(distribution.shape)}, must be "
                    f"[{vocabulary}]: spread it over the target's vocabulary"
                )


def _check_values(first_rows, probabilities, uniforms):
    inside = (uniforms >= 0) & (uniforms < 1)
    if not inside.all():
        raise ValueError(f"a uniform is {float(uniforms[~inside][0])}, must be in [0, 1): see `sampling.uniform`")
    least, most = probabilities.amin(1), probabilities.amax(1)
    good = (least >= 0) & (most > 0) & (most < math.inf)
    if not good.all():
        row = int((~good).nonzero()[0, 0])
        index = max(index for index, first_row in enumerate(first_rows) if first_row <= row)
        raise ValueError(
            f"the target's row of node {row - first_rows[index] - 1} of draft {index} is from {float(least[row])} to "
            f"{float(most[row])}, must be finite, not negative and not all 0: pass probabilities, not logits, and "
            "leave each row a token that may be drawn"
        )
