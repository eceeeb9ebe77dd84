"""A drafter without a model: what followed the longest repeated suffix before, in the prompt and its other responses.

The idea is that of SuffixDecoding (arXiv 2411.04975): a tree of continuations weighted by their frequencies, grown
greedily, longer after a longer match. Two differences: the index is a suffix automaton, so that depth costs no memory;
and the estimated acceptance is corrected by how well matches of a length have predicted the tokens observed so far,
drafted or not. That is what keeps the drafter still on text that repeats without being predictable.
"""

import operator
from heapq import heapify, heappop, heappush, nlargest

from regrow.rollout.drafters import Draft, Drafter, check_hidden
from regrow.rollout.suffix_automaton import Cursor, SuffixAutomaton

_PRIOR_TOKENS = 4  # the weight of the first guess at a confidence, in observed tokens
_PRIOR_LENGTH = 4  # the match length that is first thought to be right half of the time
_WINDOW = 64  # grades after which older ones count half


class SuffixDrafter(Drafter):
    """Drafts from the prompt, the sequence itself and all sequences of the same prompt, finished or running.

    The rule. Let m be the length of the longest suffix, up to `max_match` tokens, that has gone on before. Below
    `min_match`: no draft. Otherwise a candidate below a path of d tokens scores its parent's score (1 at the top) x
    count / sum of its siblings' counts x confidence(m + d), where counts are those of suffix, path and candidate
    together; at each node the `width` most frequent are candidates, the most recent first among equals. The best
    scores are taken until one is below `min_score` or the draft has `min(max_tokens, growth * m)` tokens.

    confidence(n) compares, over recent tokens after a match of n, how often the first candidate was right with how
    often its frequency said so; it starts at n / (n + 4). It is kept per prompt, or over all with `across_prompts`.

    Memory: about 0.5 KB per observed token and at most 1 KB (prompts once), for as many as `max_indexed_tokens`. Where
    a sequence begins beyond it, the oldest prompts without a running sequence are forgotten, then the finished
    sequences of others where these are a quarter of an index or more; running ones never are.

    Raises ValueError for an unknown sequence, one begun twice, an empty prompt, tokens that are no ids, and a state
    whose tokens are not those observed.

    >>> drafter = SuffixDrafter()
    >>> drafter.begin("a", [1, 2, 3, 4, 1, 2, 3])
    >>> drafter.propose(DraftState("a", [1, 2, 3, 4, 1, 2, 3], max_tokens=2, depth=2)).tokens
    [4, 1]
    """

    def __init__(
        self,
        vocabulary=None,
        *,
        max_match=32,
        min_match=2,
        max_depth=16,
        growth=2.0,
        min_score=0.1,
        across_prompts=False,
        max_indexed_tokens=1 << 20,
    ):
        if not 1 <= min_match <= max_match:
            raise ValueError(f"min_match is {min_match}, max_match {max_match}: give 1 <= min_match <= max_match")
        if max_depth < 1:
            raise ValueError(f"max_depth is {max_depth}: give at least 1")
        if not growth > 0:
            raise ValueError(f"growth is {growth}: give the draft tokens per matched token, above 0")
        if not 0 < min_score <= 1:
            raise ValueError(
                f"min_score is {min_score}: give the least acceptance worth a token, above 0 and at most 1"
            )
        self.vocabulary = vocabulary
        self.max_match, self.min_match, self.max_depth = max_match, min_match, max_depth
        self.growth, self.min_score = growth, min_score
        self.across_prompts = across_prompts
        self.max_indexed_tokens = max_indexed_tokens
        self._running = {}  # sequence id -> _Sequence
        self._groups = {}  # the prompt (or None: all prompts) -> _Group, in order of their first sequence

    @property
    def num_indexed_tokens(self):
        return sum(group.automaton.num_tokens for group in self._groups.values())

    def begin(self, sequence, prompt, hidden=None):
        if sequence in self._running:
            raise ValueError(f"sequence {sequence!r} is running: finish it first, or give another id")
        prompt = tuple(self._ids(prompt))
        if not prompt:
            raise ValueError(f"sequence {sequence!r} has an empty prompt: give at least one token")
        check_hidden(prompt, hidden, missing=1)
        self._forget()
        key = None if self.across_prompts else prompt
        if key not in self._groups:
            self._groups[key] = _Group(self)
        group = self._groups[key]
        self._running[sequence] = _Sequence(group, prompt, group.after_prompt(prompt))

    def observe(self, sequence, tokens, hidden=None):
        running = self._sequence(sequence)
        tokens = self._ids(tokens)
        check_hidden(tokens, hidden)
        for token in tokens:
            running.group.grade(running.cursor, token)
            running.group.automaton.append(running.cursor, token)
        running.response.extend(tokens)

    def finish(self, sequence):
        self._sequence(sequence)
        del self._running[sequence]

    def propose(self, state):
        sequence = self._sequence(state.sequence)
        observed = len(sequence.prompt) + len(sequence.response)
        if len(state.tokens) != observed:
            raise ValueError(
                f"sequence {state.sequence!r} has {len(state.tokens)} tokens, {observed} were observed: call observe "
                "with each accepted token"
            )
        return sequence.group.propose(sequence.cursor, state)

    def _sequence(self, sequence):
        if sequence not in self._running:
            raise ValueError(f"sequence {sequence!r} is not running: call begin first")
        return self._running[sequence]

    def _ids(self, tokens):
        try:
            tokens = list(map(operator.index, tokens.tolist() if hasattr(tokens, "tolist") else tokens))
        except TypeError:
            raise ValueError(f"tokens is {tokens!r:.80}: give a flat list, array or tensor of token ids") from None
        if tokens and (min(tokens) < 0 or (self.vocabulary is not None and max(tokens) >= self.vocabulary)):
            wrong = min(tokens) if min(tokens) < 0 else max(tokens)
            size = "any size" if self.vocabulary is None else f"{self.vocabulary} tokens"
            raise ValueError(f"token {wrong} is outside a vocabulary of {size}: give ids of the model's vocabulary")
        return tokens

    def _forget(self):
        """Back under the limit, where the running sequences allow it."""
        excess = self.num_indexed_tokens - self.max_indexed_tokens
        if excess <= 0:
            return
        used = {id(sequence.group) for sequence in self._running.values()}
        for key, group in list(self._groups.items()):
            if excess > 0 and id(group) not in used:
                excess -= group.automaton.num_tokens
                del self._groups[key]
        for group in self._groups.values():
            if excess > 0:
                excess -= group.keep([sequence for sequence in self._running.values() if sequence.group is group])


class _Sequence:
    __slots__ = ("cursor", "group", "prompt", "response")

    def __init__(self, group, prompt, cursor):
        self.group = group
        self.prompt = prompt
        self.cursor = cursor
        self.response = []


class _Group:
    """The sequences that draft from each other."""

    def __init__(self, rule):
        self.rule = rule
        self.right = [0.0] * (rule.max_match + 1)  # by match length: how often the first candidate was right
        self.expected = [0.0] * (rule.max_match + 1)  # the same, by its frequency
        self._clear()

    def _clear(self):
        self.automaton = SuffixAutomaton(self.rule.max_match + self.rule.max_depth)
        self.prompts = {}  # prompt -> the cursor at its end

    def after_prompt(self, prompt):
        if prompt not in self.prompts:
            cursor = self.prompts[prompt] = Cursor()
            for token in prompt:
                self.automaton.append(cursor, token)
        return self.prompts[prompt].copy()

    def keep(self, sequences):
        """Forgets all but these, if that is worth reading them again; returns by how many tokens the index shrank."""
        before = self.automaton.num_tokens
        prompts = {sequence.prompt for sequence in sequences}
        kept = sum(map(len, prompts)) + sum(len(sequence.response) for sequence in sequences)
        if before - kept < before / 4:
            return 0
        self._clear()
        for sequence in sequences:
            sequence.cursor = self.after_prompt(sequence.prompt)
            for token in sequence.response:
                self.automaton.append(sequence.cursor, token)
        return before - kept

    def confidence(self, length):
        length = min(length, self.rule.max_match)
        guess = _PRIOR_TOKENS * length / (length + _PRIOR_LENGTH)
        return min(1.0, (self.right[length] + guess) / (self.expected[length] + _PRIOR_TOKENS))

    def grade(self, cursor, token):
        """Counts whether the first candidate at the cursor is this token."""
        state, length = self.automaton.match(cursor, self.rule.max_match)
        if length < self.rule.min_match:
            return
        counts, latest = self.automaton.counts, self.automaton.latest
        children = self.automaton.children[state]
        if len(children) == 1:
            (best,) = children.values()
            share = 1.0
        else:
            best = max(children.values(), key=lambda child: (counts[child], latest[child]))
            share = counts[best] / sum(counts[child] for child in children.values())
        self.expected[length] += share
        self.right[length] += children.get(token) == best
        if self.expected[length] > _WINDOW:
            self.expected[length] /= 2
            self.right[length] /= 2

    def propose(self, cursor, state):
        top, length = self.automaton.match(cursor, self.rule.max_match)
        limit = min(state.max_tokens, int(self.rule.growth * length))
        depth_limit = min(state.depth, self.rule.max_depth)
        if length < self.rule.min_match or limit < 1 or depth_limit < 1 or state.width < 1:
            return Draft()
        taken = []  # (parent in this list, token, score), best first
        candidates = self._candidates(top, -1, 0, 1.0, length, state.width)
        heapify(candidates)
        while candidates and len(taken) < limit:
            score, _, _, depth, parent, token, child = heappop(candidates)
            taken.append((parent, token, -score))
            if depth < depth_limit:
                for candidate in self._candidates(child, len(taken) - 1, depth, -score, length + depth, state.width):
                    heappush(candidates, candidate)
        return _in_preorder(taken)

    def _candidates(self, state, parent, depth, score, length, width):
        """Children worth proposing: (-score, -count, -latest, depth, parent, token, state); these order all of them."""
        counts, latest = self.automaton.counts, self.automaton.latest
        children = self.automaton.children[state]
        if len(children) > width:
            total = sum(counts[child] for child in children.values())
            kept = nlargest(width, children.items(), key=lambda item: (counts[item[1]], latest[item[1]]))
        else:
            kept = children.items()
            total = sum(counts[child] for _, child in kept)
        scale = score * self.confidence(length)
        return [
            (-scale * (counts[child] / total), -counts[child], -latest[child], depth + 1, parent, token, child)
            for token, child in kept
            if scale * (counts[child] / total) >= self.rule.min_score
        ]


def _in_preorder(taken):
    below = [[] for _ in range(len(taken) + 1)]  # below[-1]: the top
    for node, (parent, _, _) in enumerate(taken):
        below[parent].append(node)
    parents, tokens, scores = [], [], []
    stack = [(node, -1) for node in reversed(below[-1])]
    while stack:
        node, parent = stack.pop()
        stack += [(child, len(tokens)) for child in reversed(below[node])]
        parents.append(parent)
        tokens.append(taken[node][1])
        scores.append(taken[node][2])
    return Draft(parents, tokens, scores)
