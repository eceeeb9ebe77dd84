"""The suffix drafter against search through all text, its limits, and what it is worth on texts that repeat or not."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drafted_text import VOCABULARY, follow, random_text, repeated_text, uniform_text
from naive_suffix import NaiveSuffix
from regrow.rollout.drafters import DraftState, check_draft
from regrow.rollout.suffix import SuffixDrafter
from regrow.rollout.suffix_automaton import Cursor, SuffixAutomaton

# Two or three different tokens: long matches, splits and ties in short texts.
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
PIECES = st.lists(st.tuples(st.integers(0, 3), TOKENS), min_size=1, max_size=8)


def paths(draft):
    return {tuple(draft.path(node)): score for node, score in enumerate(draft.scores or [])}


def drafter_of(texts, **options):
    """A drafter that runs these (prompt, response), by index."""
    drafter = SuffixDrafter(**options)
    for sequence, (prompt, response) in enumerate(texts):
        drafter.begin(sequence, prompt)
        drafter.observe(sequence, response)
    return drafter


@given(PIECES, st.integers(1, 6))
def test_counts_are_those_of_a_search(pieces, max_length):
    automaton, cursors, texts, ends = SuffixAutomaton(max_length), {}, {}, []
    for sequence, tokens in pieces:
        cursor = cursors.setdefault(sequence, Cursor())
        for token in tokens:
            automaton.append(cursor, token)
            texts[sequence] = [*texts.get(sequence, []), token]
            ends.append(texts[sequence])
    strings = {tuple(text[-length:]) for text in ends for length in range(1, max_length + 1) if length <= len(text)}
    for string in strings:
        state = 0
        for token in string:
            state = automaton.children[state][token]
        places = [clock for clock, text in enumerate(ends, 1) if tuple(text[-len(string) :]) == string]
        assert automaton.counts[state] == len(places)
        assert automaton.latest[state] == places[-1]
    assert len(automaton.lengths) <= 2 * automaton.num_tokens + 1


def test_a_run_costs_a_bounded_number_of_steps_per_token():
    automaton, cursor = SuffixAutomaton(max_length=6), Cursor()
    for _ in range(100):
        automaton.append(cursor, 2)
    assert automaton.counts == [0] + [101 - length for length in range(1, 7)] + [0] * 94
    assert automaton.lengths[cursor.counted] == 6


@given(
    prompt=TOKENS,
    pieces=PIECES,
    max_match=st.integers(1, 6),
    min_match=st.integers(1, 2),
    max_depth=st.integers(1, 5),
    growth=st.sampled_from([0.4, 1.0, 2.5]),
    min_score=st.sampled_from([0.01, 0.1, 0.3]),
    width=st.integers(1, 3),
    max_tokens=st.integers(0, 9),
)
def test_drafts_are_those_of_a_search(prompt, pieces, max_match, width, max_tokens, **rule):
    rule["max_match"] = max(max_match, rule["min_match"])
    naive, drafter, texts = NaiveSuffix(**rule), SuffixDrafter(vocabulary=3, **rule), {}
    for sequence, tokens in pieces:
        if sequence not in texts:
            texts[sequence] = list(prompt)
            naive.begin(sequence, prompt)
            drafter.begin(sequence, prompt)
        naive.observe(sequence, tokens)
        drafter.observe(sequence, tokens)
        texts[sequence] += tokens
        # Running siblings draft too: what they see has grown since their last token.
        for each, text in texts.items():
            state = DraftState(each, text, max_tokens, depth=4, width=width)
            draft = check_draft(drafter.propose(state), state, vocabulary=3)
            assert paths(draft) == naive.propose(each, max_tokens, 4, width)


@given(TOKENS, TOKENS, st.integers(1, 12))
def test_observing_in_pieces_is_observing_at_once(prompt, tokens, piece):
    whole, pieces = drafter_of([(prompt, tokens)]), drafter_of([(prompt, [])])
    for start in range(0, len(tokens), piece):
        pieces.observe(0, tokens[start : start + piece])
    state = DraftState(0, prompt + tokens, 8, 4, 2)
    assert whole.propose(state) == pieces.propose(state)


def test_siblings_are_tried_by_frequency_then_recency():
    drafter = drafter_of([([1, 2], [3]), ([1, 2], [4]), ([1, 2], [5]), ([1, 2], [3]), ([1, 2], [])], min_score=0.01)
    draft = drafter.propose(DraftState(4, [1, 2], max_tokens=8, depth=1, width=4))
    assert draft.tokens == [3, 5, 4]
    assert draft.scores[0] == 2 * draft.scores[1] == 2 * draft.scores[2]


def test_equal_scores_are_taken_by_frequency():
    # 4 is as frequent as 3 and later. Below each one token has always followed: twice 5, and once, and later, 6.
    drafter = drafter_of([([1, 2], response) for response in ([3, 5], [3, 5], [4], [4, 6], [])], min_score=0.01)
    draft = drafter.propose(DraftState(4, [1, 2], max_tokens=3, depth=2, width=2))
    assert [draft.path(node) for node in range(3)] == [[4], [3], [3, 5]]


def test_a_longer_match_goes_before_a_more_frequent_one():
    drafter = drafter_of([([9], [2, 3, 4] * 5), ([9], [1, 2, 3, 7]), ([9], [1, 2, 3])])
    assert drafter.propose(DraftState(2, [9, 1, 2, 3], max_tokens=1, depth=1)).tokens == [7]


def test_a_match_without_continuation_gives_way_to_a_shorter_one():
    # Both siblings stand at 5 1 2, which nothing follows; 1 2 went on with 3.
    drafter = drafter_of([([1, 2, 3], [5, 1, 2]), ([1, 2, 3], [5, 1, 2])])
    assert drafter.propose(DraftState(1, [1, 2, 3, 5, 1, 2], max_tokens=1, depth=1)).tokens == [3]


def test_drafts_grow_with_the_match():
    text = list(range(100))
    lengths = []
    for match in (1, 2, 4, 8, 16):
        drafter = drafter_of([(text, text[:match])])
        lengths.append(len(drafter.propose(DraftState(0, text + text[:match], max_tokens=64, depth=64))))
    assert lengths[0] == 0
    assert lengths == sorted(lengths) and lengths[-1] > 2 * lengths[2]
    assert all(length <= 2 * match for length, match in zip(lengths, (1, 2, 4, 8, 16), strict=True))


def test_finished_siblings_raise_acceptance():
    drafter, text = SuffixDrafter(VOCABULARY), random_text(200, seed=1)
    alone, drafted_alone = follow(drafter, "first", [5, 6], text)
    after, _ = follow(drafter, "second", [5, 6], text)
    assert drafted_alone <= 10 and alone >= 195
    assert after <= 40


# By what could mislead: nothing (few pairs repeat), and short matches everywhere, which predict nothing.
@pytest.mark.parametrize("make", [random_text, partial(uniform_text, vocabulary=32)], ids=["words", "few tokens"])
def test_random_text_is_left_alone(make):
    drafter = SuffixDrafter(VOCABULARY)
    drafted = [follow(drafter, index, [5, 6], make(256, seed=index))[1] for index in range(8)]
    assert sum(drafted) <= 0.05 * 8 * 256


# By what fills the index: ordinary text; a run, then each of its lengths again: two states a token.
@pytest.mark.parametrize("text", [random_text(2048, seed=0), repeated_text(2048, seed=0), [1] + [2] * 2047])
def test_memory_per_token(text):
    drafter = SuffixDrafter()
    drafter.begin(0, [5])
    tracemalloc.start()
    try:
        drafter.observe(0, text)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= 1024 * len(text)


def test_text_that_repeats_is_accepted():
    drafter = SuffixDrafter(VOCABULARY)
    steps = [follow(drafter, index, [5, 6], repeated_text(256, seed=index))[0] for index in range(8)]
    assert 256 / steps[-1] > 2.5


def test_expected_acceptance_is_near_the_real_one():
    """What a caller declines by: over a whole text, right within a quarter."""
    drafter, expected = SuffixDrafter(VOCABULARY), 0.0
    propose = drafter.propose

    def counted(state):
        nonlocal expected
        draft = propose(state)
        expected += draft.expected_accepted or 0
        return draft

    drafter.propose = counted
    steps = sum(follow(drafter, index, [5, 6], repeated_text(256, seed=index))[0] for index in range(8))
    assert expected == pytest.approx(8 * 256 - steps, rel=0.25)


def test_prompts_do_not_leak_unless_asked():
    texts = [([1, 2], [5, 6, 7, 8]), ([3, 4], [5, 6])]
    state = DraftState(1, [3, 4, 5, 6], max_tokens=2, depth=2)
    assert len(drafter_of(texts).propose(state)) == 0
    assert drafter_of(texts, across_prompts=True).propose(state).tokens[0] == 7


def test_a_prompt_counts_once():
    drafter = drafter_of([([1, 2, 3, 1, 2], []) for _ in range(5)] + [([1, 2, 3, 1, 2], [4, 1, 2])], min_score=0.01)
    draft = drafter.propose(DraftState(5, [1, 2, 3, 1, 2, 4, 1, 2], max_tokens=2, depth=1, width=2))
    assert draft.tokens == [4, 3] and draft.scores[0] == draft.scores[1]


def test_tensors_and_arrays_are_lists():
    expected = drafter_of([([1, 2, 3], [4, 1, 2])])
    state = DraftState(0, [1, 2, 3, 4, 1, 2], 2, 2)
    for make in (torch.tensor, np.array, lambda tokens: [torch.tensor(token) for token in tokens]):
        drafter = drafter_of([(make([1, 2, 3]), make([4, 1, 2]))])
        draft = drafter.propose(state)
        assert draft == expected.propose(state) and len(draft)
        assert all(type(token) is int for token in draft.tokens)


def test_a_full_index_forgets_idle_prompts_first_and_running_sequences_never():
    drafter = SuffixDrafter(max_indexed_tokens=40)
    text = list(range(10, 30))
    for sequence, prompt in enumerate([[1, 2], [3, 4]]):
        drafter.begin(sequence, prompt)
        drafter.observe(sequence, text)
    drafter.finish(0)
    drafter.begin(2, [3, 4])  # 44 tokens: the first prompt goes
    assert drafter.num_indexed_tokens == 22
    drafter.observe(2, text)
    drafter.finish(1)
    drafter.observe(2, text[:4])
    state = DraftState(2, [3, 4, *text, *text[:4]], 1, 1)
    before = drafter.propose(state)
    drafter.begin(3, [3, 4])  # 46 tokens: the finished sequence goes, 24 + 2 stay
    assert drafter.num_indexed_tokens == 26
    assert drafter.propose(state).tokens == before.tokens == [14]
    assert drafter.propose(DraftState(3, [3, 4], 2, 2)).tokens == [10, 11]


def test_running_sequences_beyond_the_limit_are_not_read_again_at_each_begin():
    drafter = SuffixDrafter(max_indexed_tokens=10)
    for sequence in range(3):
        drafter.begin(sequence, [1, 2])
        drafter.observe(sequence, range(10))
    automaton = drafter._groups[1, 2].automaton
    drafter.begin(3, [1, 2])
    assert drafter.num_indexed_tokens == 32 and drafter._groups[1, 2].automaton is automaton


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda d: d.begin(0, [1]), "sequence 0 is running: finish it first"),
        (lambda d: d.begin(1, []), "sequence 1 has an empty prompt: give at least one token"),
        (lambda d: d.begin(1, [8]), "token 8 is outside a vocabulary of 8 tokens: give ids"),
        (lambda d: d.begin(1, [1, 2], torch.zeros(2, 4)), r"hidden has shape \(2, 4\) for 2 tokens: give \[1, H\]"),
        (lambda d: d.observe(0, [-1]), "token -1 is outside a vocabulary of 8 tokens"),
        (lambda d: d.observe(0, [1.5]), r"tokens is \[1.5\]: give a flat list"),
        (lambda d: d.observe(0, torch.tensor([[1, 2]])), r"tokens is .*: give a flat list"),
        (lambda d: d.observe(0, [1], torch.zeros(2, 4)), r"hidden has shape \(2, 4\) for 1 tokens: give \[1, H\]"),
        (lambda d: d.observe(7, [1]), "sequence 7 is not running: call begin first"),
        (lambda d: d.finish(7), "sequence 7 is not running"),
        (lambda d: d.propose(DraftState(0, [1, 2], 1, 1)), "sequence 0 has 2 tokens, 3 were observed: call observe"),
        (lambda d: SuffixDrafter(min_match=0), "min_match is 0, max_match 32: give 1 <= min_match"),
        (lambda d: SuffixDrafter(max_depth=0), "max_depth is 0: give at least 1"),
        (lambda d: SuffixDrafter(growth=0), "growth is 0: give the draft tokens"),
        (lambda d: SuffixDrafter(min_score=0), "min_score is 0: give the least acceptance"),
    ],
)
def test_messages(call, message):
    drafter = drafter_of([([1, 2], [3])], vocabulary=8)
    with pytest.raises(ValueError, match=message):
        call(drafter)


def test_an_id_may_be_used_again_after_finish():
    drafter = drafter_of([([1, 2, 3, 4], [1, 2])])
    drafter.finish(0)
    drafter.begin(0, [1, 2, 3, 4])
    drafter.observe(0, [1, 2])
    assert drafter.propose(DraftState(0, [1, 2, 3, 4, 1, 2], 2, 2)).tokens == [3, 4]
