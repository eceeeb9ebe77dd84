"""Texts, and a rollout whose model is greedy and gives a known text: what a drafter is worth without a model."""

import random

from regrow.rollout.drafters import DraftState, check_draft

VOCABULARY = 49152


def random_text(length, seed):
    """Tokens as frequent as words are: the frequency of the n-th falls as 1 / n."""
    draw = random.Random(seed)
    return [int(VOCABULARY ** draw.random()) for _ in range(length)]


def uniform_text(length, seed, vocabulary):
    """Nothing can be predicted, but from few tokens everything short repeats."""
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(length)]


def repeated_text(length, seed):
    """Sentences of 12 tokens, of 8 kinds, each with two tokens of its own: a task's solutions look so."""
    draw = random.Random(seed)
    text = []
    while len(text) < length:
        kind = draw.randrange(8)
        sentence = [1000 + 100 * kind + place for place in range(12)]
        sentence[3], sentence[9] = draw.randrange(10), draw.randrange(10)
        text += sentence
    return text[:length]


def follow(drafter, sequence, prompt, text, max_tokens=16, depth=8, width=2):
    """Generates the text with the drafter -> (steps, drafted tokens). A step accepts a path and one token more."""
    drafter.begin(sequence, prompt)
    steps = drafted = done = 0
    while done < len(text):
        state = DraftState(sequence, prompt + text[:done], max_tokens, depth, width)
        draft = check_draft(drafter.propose(state), state, VOCABULARY)
        accepted = max(
            (len(draft.path(node)) for node in range(len(draft)) if _agrees(draft.path(node), text[done:])), default=0
        )
        end = min(done + accepted + 1, len(text))
        drafter.observe(sequence, text[done:end])
        steps, drafted, done = steps + 1, drafted + len(draft), end
    drafter.finish(sequence)
    return steps, drafted


def _agrees(path, text):
    return path == text[: len(path)]
