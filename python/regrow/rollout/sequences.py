"""A sequence while it runs: its tokens, its slice of the axis, and when it ends."""

from collections import abc
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

    def append(self, emitted, count):
        """The first `count` tokens of an `Emitted`, with their log-probs."""
        self.tokens += emitted.tokens[:count]
        self.logprobs += emitted.logprobs[:count]
        self.sampling_logprobs += emitted.sampling_logprobs[:count]


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


class Text(abc.Sequence):
    """A prompt and its response as one sequence of tokens, read where they lie; it grows with the response."""

    def __init__(self, prompt, response):
        self.prompt, self.response = prompt, response

    def __len__(self):
        return len(self.prompt) + len(self.response)

    def __eq__(self, other):
        return isinstance(other, abc.Sequence) and list(self) == list(other)

    __hash__ = None

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        place = index - len(self.prompt)
        return self.prompt[index] if place < 0 else self.response[place]


@dataclass(frozen=True)
class Placed:
    """What one step runs: of each sequence the last token, then its draft's nodes behind it. places, tokens: int64 [R].

    branches: of drafts that are no chains, which sequence, and (places, ends, depths) of the nodes [nodes].
    """

    places: np.ndarray
    tokens: np.ndarray
    branches: dict


def place(sequences, drafts):
    """The step of these sequences, in the order of the axis, with these drafts."""
    places, tokens, branches = [], [], {}
    for index, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True)):
        root = sequence.root
        places += range(root, root + 1 + len(draft))
        tokens.append(sequence.tokens[-1])
        if len(draft):
            tokens += draft.tokens
            if not is_chain(draft):
                branches[index] = place_nodes(sequence, draft)
    return Placed(np.array(places), np.array(tokens, np.int64), branches)


def place_nodes(sequence, draft):
    """(places, ends, depths) of a draft's nodes: each is seen up to its last descendant."""
    sizes = [1] * len(draft)
    for node in range(len(draft) - 1, -1, -1):
        if draft.parents[node] >= 0:
            sizes[draft.parents[node]] += sizes[node]
    places = sequence.root + 1 + np.arange(len(draft))
    return places, places + sizes, sequence.depth + np.array(draft.depths)


def is_chain(draft):
    return all(parent == node - 1 for node, parent in enumerate(draft.parents))
