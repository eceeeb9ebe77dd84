"""A sequence while it runs: its tokens, its slice of the axis, and when it ends."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class Sequence:
    """number: prompt-major. begin: the first place of its slice; response token i lies at begin + i, the last one not
    yet: its keys are computed by the step that draws the next."""

    number: int
    prompt: int
    prompt_tokens: list[int]
    begin: int = -1
    tokens: list[int] = field(default_factory=list)  # of the response
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    hidden: list = field(default_factory=list)  # pieces [n, H]: beside each response token
    reason: str | None = None  # once it has ended

    @property
    def root(self):
        """The place of the last token."""
        return self.begin + len(self.tokens) - 1

    @property
    def depth(self):
        """The position id of the last token."""
        return len(self.prompt_tokens) + len(self.tokens) - 1


class Stop:
    """Ends of sequences: a response ends behind the first of these runs of tokens, or at `max_new_tokens`."""

    def __init__(self, runs, max_new_tokens):
        self.runs = [tuple(run) for run in runs]
        self.lasts = {run[-1] for run in self.runs}
        self.max_new_tokens = max_new_tokens

    def count(self, response, tokens):
        """How many of the new tokens the response takes, and why it ends there, or None."""
        room = self.max_new_tokens - len(response)
        for count, token in enumerate(tokens[:room], start=1):
            if token in self.lasts and self._ends([*response, *tokens[:count]]):
                return count, "stop"
        return (room, "length") if len(tokens) >= room else (len(tokens), None)

    def _ends(self, response):
        return any(tuple(response[-len(run) :]) == run for run in self.runs)


def draft_places(sequence, draft):
    """(places, ends, depths) of the last token and the nodes of a draft behind it, int64 arrays [1 + nodes].

    The last token is seen by all behind it, as without a draft; a node up to its last descendant: ends [nodes].
    """
    count = len(draft)
    places = sequence.root + np.arange(1 + count)
    depths = np.array([0, *draft.depths]) + sequence.depth
    sizes = np.ones(count, np.int64)
    for node in range(count - 1, -1, -1):
        if draft.parents[node] >= 0:
            sizes[draft.parents[node]] += sizes[node]
    return places, places[1:] + sizes, depths


def is_chain(draft):
    return all(parent == node - 1 for node, parent in enumerate(draft.parents))
