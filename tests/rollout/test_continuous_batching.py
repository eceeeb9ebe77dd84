"""Who starts when, what is computed, what is told about it, and what an interrupt leaves."""

from collections import Counter

import pytest
import torch

from guesses import Guesses
from regrow.rollout import Draft, Drafter, Finished, Idle, Started, Stepped, Strategy, SuffixDrafter, engine, generate
from regrow.rollout.axis import Axis
from regrow.rollout.prompts import Prompts
from tiny_policy import TinyPolicy

VOCABULARY, NEW, GROUP = 11, 14, 3
PROMPTS = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [7], [1, 2, 3, 4], [1, 2, 3, 4, 8, 9, 10], [1, 2], [5, 5]]
APART = [[prompt, 4, 4] for prompt in range(VOCABULARY)]
STOP = [8]  # responses of many lengths


class Events(list):
    def __call__(self, event):
        self.append(event)

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


def roll(prompts=PROMPTS, group=GROUP, **options):
    options = dict(max_new_tokens=NEW, seed=0, stop=STOP) | options
    events = options.setdefault("on_event", Events())
    return generate(TinyPolicy(VOCABULARY, windows=(None, 3)), prompts, group, **options), events


def texts(rollout):
    return [sequence.tolist() for sequence in rollout.sequences]


# One slot, fewer than a group, a group and a bit, all; with trees, where a step may end several at once.
BATCHES = [(1, False), (2, False), (4, True), (5, False), (None, False), (None, True)]


@pytest.mark.parametrize(("max_batch", "drafted"), BATCHES)
@pytest.mark.parametrize("prompts", [PROMPTS, APART], ids=["shared", "apart"])
def test_events_tell_what_happened(prompts, max_batch, drafted):
    options = {}
    if drafted:
        right = texts(roll(prompts)[0])
        options = dict(drafter=Guesses(right, 0, VOCABULARY), strategy=Strategy(3, 2, 6))
    rollout, events = roll(prompts, max_batch=max_batch, **options)
    total, lengths = len(prompts) * GROUP, [len(response) for response in rollout.responses()]
    slots = max_batch or total
    assert rollout.numbers == list(range(total)) and not rollout.interrupted
    assert len(set(lengths)) > 4 and set(rollout.reasons) == {"stop", "length"}

    times = [event.time for event in events]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= rollout.stats.seconds
    assert Counter(event.sequence for event in events.of(Started)) == Counter(range(total))
    for event in events.of(Started):
        assert event.prompt_tokens == len(prompts[event.sequence // GROUP])
    finished = {event.sequence: event for event in events.of(Finished)}
    assert len(events.of(Finished)) == total
    assert [finished[n].num_tokens for n in range(total)] == lengths
    assert [finished[n].reason for n in range(total)] == rollout.reasons

    live, gained, idle = set(), Counter(), 0
    for event in events:
        if isinstance(event, Started):
            live.add(event.sequence)
        elif isinstance(event, Stepped):
            assert set(event.tokens) <= live and min(event.tokens.values()) >= 1
            assert sum(event.tokens.values()) <= len(event.tokens) + event.accepted <= len(event.tokens) + event.drafted
            gained.update(event.tokens)
        elif isinstance(event, Finished):
            live.remove(event.sequence)
            assert gained[event.sequence] == event.num_tokens
        else:
            assert event.live == len(live) and event.slots == slots - len(live) != idle
            idle = event.slots
        assert len(live) <= slots
    assert isinstance(events[-1], Idle) and events[-1].slots == slots
    assert [event.step for event in events.of(Stepped)] == list(range(1, 1 + len(events.of(Stepped))))

    stats = rollout.stats
    assert stats.tokens == sum(gained.values()) == sum(lengths)
    assert stats.drafted == sum(event.drafted for event in events.of(Stepped)) == sum(row[1] for row in stats.trace)
    assert stats.accepted == sum(event.accepted for event in events.of(Stepped)) == sum(row[2] for row in stats.trace)
    assert (stats.accepted > 0) == drafted and stats.steps == len(stats.trace)
    assert stats.tokens_per_second == stats.tokens / stats.seconds
    assert stats.acceptance_length == 1 if not drafted else stats.acceptance_length > 1
    # Nothing is computed twice: the trie, then each token but the last of a sequence, and drafts.
    decoded = sum(row[0] for row in stats.trace)
    assert stats.rows == Prompts(prompts).num_tokens + decoded + stats.drafted
    assert decoded == sum(lengths) - total or drafted
    assert 0 < stats.kv_bytes <= stats.predicted_kv_bytes


@pytest.mark.parametrize("max_batch", [1, 2, 4, 7])
@pytest.mark.parametrize("prompts", [PROMPTS, APART], ids=["shared", "apart"])
def test_siblings_come_first(prompts, max_batch):
    _, events = roll(prompts, max_batch=max_batch)
    trie = Prompts(prompts, GROUP)
    waiting, running, admitted, open_at_once = list(trie.counts), Counter(), [], 0
    for event in events:
        if isinstance(event, Started):
            prompt = trie.of_sequence[event.sequence]
            if prompt not in admitted:
                for other in admitted:
                    slices = min(trie.counts[other], max_batch)
                    assert not (waiting[other] and running[other] < slices), "a sibling had a slice to go to"
                admitted.append(prompt)
            waiting[prompt] -= 1
            running[prompt] += 1
            open_at_once = max(open_at_once, sum(bool(waiting[p] or running[p]) for p in admitted))
        elif isinstance(event, Finished):
            running[trie.of_sequence[event.sequence]] -= 1
    assert admitted == list(range(len(trie.counts)))
    if prompts is APART:  # a prompt's interval goes to another once it is free
        assert open_at_once <= 2 * -(-max_batch // GROUP) < len(APART)


def test_one_at_a_time_is_one_after_the_other():
    rollout, events = roll(APART, max_batch=1)
    order = [type(event) for event in events if not isinstance(event, (Stepped, Idle))]
    assert order == [Started, Finished] * (len(APART) * GROUP)
    assert [event.sequence for event in events.of(Started)] == rollout.numbers


def test_slots_stay_busy_while_sequences_wait():
    _, events = roll(APART, max_batch=4)
    started = 0
    for event in events:
        started += isinstance(event, Started)
        if isinstance(event, Idle):
            assert started == len(APART) * GROUP


def test_first_tokens_that_end_make_room_at_once():
    rollout, events = roll(max_new_tokens=1, max_batch=2, stop=None)
    assert rollout.stats.steps == 0 and set(rollout.reasons) == {"length"}
    assert rollout.stats.rows == Prompts(PROMPTS).num_tokens
    assert len(events.of(Stepped)) >= len(PROMPTS) * GROUP / 2


# ---- Interrupts and errors ----


class Told(Exception):
    pass


def raising(error, when):
    """An `on_event` that raises once `when` is true of the events so far."""
    events = Events()

    def on_event(event):
        events(event)
        if when(events):
            raise error

    return on_event, events


def test_an_error_of_on_event_comes_through():
    on_event, events = raising(Told("no"), lambda events: len(events) == 9)
    with pytest.raises(Told):
        roll(on_event=on_event)
    assert len(events) == 9


@pytest.mark.parametrize(
    ("kind", "count"), [(Started, 1), (Started, 7), (Stepped, 1), (Stepped, 9), (Finished, 1), (Finished, 5), (Idle, 2)]
)
def test_an_interrupt_returns_what_is_finished(kind, count):
    right = roll(stop=None)[0]
    lengths = [len(response) for response in roll()[0].responses()]
    on_event, events = raising(KeyboardInterrupt, lambda events: len(events.of(kind)) == count)
    rollout, _ = roll(on_event=on_event, max_batch=5)
    assert rollout.interrupted and rollout.numbers == sorted(rollout.numbers)
    assert {event.sequence for event in events.of(Finished)} <= set(rollout.numbers)
    gained = sum((Counter(event.tokens) for event in events.of(Stepped)), Counter())
    over = [number for number, length in enumerate(lengths) if gained[number] == length]
    assert rollout.numbers == over  # also those whose Finished was to come
    for number, text, reason in zip(rollout.numbers, texts(rollout), rollout.reasons, strict=True):
        whole = texts(right)[number]
        assert text == whole[: len(text)] and reason in ("stop", "length")
        assert len(text) - len(PROMPTS[number // GROUP]) == lengths[number]
    assert rollout.stats.tokens == sum(gained.values())


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("calls", [1, 4])  # in the prompts' forward, which is the first after the probe; in decoding
def test_an_interrupted_model_leaves_an_empty_rollout(calls, hidden, monkeypatch):
    forward, count = TinyPolicy.replay_hidden, Counter()

    def interrupted(policy, segment):
        count["calls"] += 1
        if count["calls"] > calls:
            raise KeyboardInterrupt
        return forward(policy, segment)

    monkeypatch.setattr(TinyPolicy, "replay_hidden", interrupted)
    rollout, _ = roll(stop=None, return_hidden=hidden)
    assert rollout.interrupted and rollout.sequences == rollout.numbers == rollout.responses() == []
    assert rollout.hidden is None and rollout.stats.acceptance_length == 1
    assert rollout.stats.tokens == (0 if calls == 1 else (calls - 1) * len(PROMPTS) * GROUP)
    with pytest.raises(ValueError):
        _ = rollout.tree


class Counted(Drafter):
    """Counts what it is told, and drafts nothing or fails."""

    def __init__(self, error=None):
        self.running, self.error, self.observed = set(), error, Counter()

    def begin(self, sequence, prompt, hidden=None):
        assert sequence not in self.running
        self.running.add(sequence)

    def observe(self, sequence, tokens, hidden=None):
        assert sequence in self.running
        self.observed[sequence] += len(tokens)

    def propose(self, state):
        if self.error is not None and sum(self.observed.values()) > 60:
            raise self.error
        return engine.Draft()

    def finish(self, sequence):
        self.running.remove(sequence)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, Told])
def test_a_drafter_is_told_of_all_ends(error):
    drafter = Counted(error)
    options = dict(drafter=drafter, strategy=Strategy(2), max_batch=6)
    if error is Told:
        with pytest.raises(Told):
            roll(**options)
    else:
        rollout, _ = roll(**options)
        assert rollout.interrupted == (error is not None)
        assert sum(drafter.observed.values()) == rollout.stats.tokens
    assert not drafter.running and drafter.observed


def test_an_interrupted_rollouts_drafter_serves_another():
    drafter = SuffixDrafter(VOCABULARY)
    on_event, _ = raising(KeyboardInterrupt, lambda events: len(events.of(Stepped)) == 3)
    roll(drafter=drafter, strategy=Strategy(2), on_event=on_event)
    rollout, _ = roll(drafter=drafter, strategy=Strategy(2))
    assert texts(rollout) == texts(roll()[0]) and rollout.stats.drafted > 0


# ---- Results ----


def test_results_are_prompt_major_and_a_tree_for_training():
    rollout, _ = roll(max_batch=3)
    assert [text[: len(PROMPTS[n // GROUP])] for n, text in enumerate(texts(rollout))] == [
        prompt for prompt in PROMPTS for _ in range(GROUP)
    ]
    assert rollout.tree.unpack(rollout.tree.tokens).tolist() == [token for text in texts(rollout) for token in text]
    on_axis = rollout.on_axis(rollout.logprobs)
    mask = rollout.response_mask
    for path, length, logprobs in zip(rollout.paths(), rollout.prompt_lengths, rollout.logprobs, strict=True):
        torch.testing.assert_close(on_axis[path[length:]], logprobs, rtol=0, atol=1e-12)
        assert mask[path[length:]].all()
    nodes = set()
    for text, length in zip(texts(rollout), rollout.prompt_lengths, strict=True):
        nodes |= {tuple(text[: n + 1]) for n in range(length, len(text))}
    assert int(mask.sum()) == len(nodes)
    for part, length, logprobs in zip(rollout.masks, rollout.prompt_lengths, rollout.old_logprobs, strict=True):
        assert not part[:length].any() and part[length:].all() and len(part) == len(logprobs)
        assert not logprobs[:length].any()


def test_a_failing_drafter_loses_nothing_that_is_finished():
    class Failing(Drafter):
        def propose(self, state):
            if len(state.tokens) > len(PROMPTS[0]) + 3:
                raise RuntimeError("out of ideas")
            return Draft()

        def observe(self, sequence, tokens, hidden=None):
            pass

    whole, _ = roll()
    with pytest.raises(RuntimeError, match="out of ideas") as caught:
        roll(drafter=Failing(), strategy=Strategy(2), stop=[[token] for token in range(3)])
    partial = caught.value.rollout
    assert partial.interrupted and 0 < len(partial.sequences) < len(whole.sequences)


def test_a_drafter_is_not_asked_where_the_next_token_is_the_last():
    class Eager(Drafter):
        def propose(self, state):
            return Draft.chain([0])  # whatever max_tokens is

        def observe(self, sequence, tokens, hidden=None):
            pass

    rollout, _ = roll(drafter=Eager(), strategy=Strategy(2))
    assert rollout.stats.drafted > 0


# Prompts of falling lengths, so that one fits into what another leaves, at other depths.
FALLING = [[n % VOCABULARY] * length for n, length in enumerate([12, 9, 11, 7, 8, 5, 6, 3, 4, 2, 10])]


def falling(**options):
    model = TinyPolicy(VOCABULARY, windows=(None, 3))
    return texts(generate(model, FALLING, 2, max_new_tokens=NEW, seed=2, stop=[3, 5], **options))


def test_a_place_may_go_to_a_prompt_of_another_length():
    expected = falling()
    assert all(falling(max_batch=max_batch) == expected for max_batch in (1, 2, 3, 5))


def test_places_that_keep_their_old_owner_are_caught(monkeypatch):
    monkeypatch.setattr(Axis, "forget", lambda axis, places: None)
    with pytest.raises(ValueError, match="nan"):  # of memory that nobody has written yet
        test_a_place_may_go_to_a_prompt_of_another_length()
