"""A drafter that knows the text: trees without distributions in which the right continuation is a branch, or is not."""

import torch

from regrow.rollout import Draft, Drafter, DraftState


class Guesses(Drafter):
    """Trees of two branches at every node: the right continuation as one branch, or as none."""

    def __init__(self, sequences, seed, vocabulary=64):
        self.right, self.generator = sequences, torch.Generator().manual_seed(seed)
        self.tokens = vocabulary

    def observe(self, sequence, tokens, hidden=None):
        pass

    def propose(self, state: DraftState):
        right = self.right[state.sequence][len(state.tokens) :]
        parents, tokens = [], []

        def grow(parent, depth):
            if depth == min(state.depth, len(right)):
                return
            wrong = int(torch.randint(self.tokens, (), generator=self.generator))
            branches = [right[depth]] if wrong == right[depth] else [wrong, right[depth]]
            if torch.rand((), generator=self.generator) < 0.3:
                branches.reverse()
            for token in branches[: state.width]:
                if len(tokens) == state.max_tokens:
                    return
                parents.append(parent)
                tokens.append(token)
                grow(len(tokens) - 1, depth + 1)

        grow(-1, 0)
        return Draft(parents, tokens)
