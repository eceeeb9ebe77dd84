"""The rollout's loop: sequences start where there is room, step together, and have their drafts verified."""

import time

import torch

from regrow.rollout.drafters import Draft, DraftState, check_draft
from regrow.rollout.events import Finished, Idle, Started, Stepped
from regrow.rollout.selector import StepOutcome
from regrow.rollout.sequences import Sequence, Text, place


class Engine:
    """cache: `Cache`; next_tokens: `NextTokens`; stop: `Stop`; drafter and selector, or None for both; on_event: takes
    each event; keep_hidden: whether the hidden states of responses are kept."""

    def __init__(self, cache, next_tokens, stop, *, max_live, drafter, selector, on_event, keep_hidden):
        self.cache, self.next_tokens, self.stop = cache, next_tokens, stop
        self.max_live, self.drafter, self.selector = max_live, drafter, selector
        self.on_event, self.keep_hidden = on_event, keep_hidden
        self.gives_hidden = drafter is not None and drafter.wants_hidden
        self.prompts = cache.prompts
        self.queues = [[] for _ in self.prompts.unique]  # sequences of each prompt that have not started
        for number, prompt in enumerate(self.prompts.of_sequence):
            self.queues[prompt].append(number)
        self.next_prompt = 0  # the first that has no place yet
        self.live, self.finished = [], []
        self.begun = set()  # sequences that the drafter was told of, and not that they ended
        self.idle = self.step = 0
        self.started_at = time.perf_counter()
        self.prefill_seconds = 0.0
        self.trace = []  # a `StepOutcome` for each decoding step

    def run(self):
        """Until all sequences have ended."""
        try:
            while True:
                self.start_sequences()
                if not self.live:
                    return
                self.decode()
        finally:  # an interrupted rollout's drafter may serve another one
            for number in self.begun:
                self.drafter.finish(number)

    @property
    def now(self):
        return time.perf_counter() - self.started_at

    def start_sequences(self):
        """Fills the free slots. Sequences that end with their first token leave room for more."""
        while new := self.admit():
            began = time.perf_counter()
            self.cache.fill({sequence.prompt for sequence in new})
            self.prefill_seconds += time.perf_counter() - began
            for sequence in new:
                self.on_event(Started(self.now, sequence.number, len(sequence.prompt_tokens)))
                if self.drafter is not None:
                    hidden = self.cache.prompt_hidden(sequence.prompt)[:-1] if self.gives_hidden else None
                    self.drafter.begin(sequence.number, sequence.prompt_tokens, hidden)
                    self.begun.add(sequence.number)
            hidden = torch.stack([self.cache.last_hidden(sequence.prompt) for sequence in new])
            self.live += new
            self.emit(new, [Draft()] * len(new), hidden)
        idle = self.max_live - len(self.live)
        if idle != self.idle:
            self.idle = idle
            self.on_event(Idle(self.now, idle, len(self.live)))

    def admit(self):
        """New sequences with slices: siblings of prompts on the axis first, then prompts in their order."""
        new = []
        while len(self.live) + len(new) < self.max_live:
            prompt = self.prompt_with_room()
            if prompt is None:
                break
            new.append(Sequence(self.queues[prompt].pop(0), prompt, self.prompts.unique[prompt]))
            self.cache.start(new[-1])
        return new

    def prompt_with_room(self):
        for prompt, free in self.cache.layout.free_slices.items():
            if free and self.queues[prompt]:
                return prompt
        if self.next_prompt == len(self.queues) or not self.cache.admit(self.next_prompt):
            return None
        self.next_prompt += 1
        return self.next_prompt - 1

    def decode(self):
        """One forward over the last tokens of all live sequences and what is drafted behind them."""
        began = time.perf_counter()
        live = sorted(self.live, key=lambda sequence: sequence.begin)
        drafts = self.draft(live)
        drafted = time.perf_counter()
        step = place(live, drafts)
        hidden = self.cache.forward(step.places, step.tokens, step.branches.values())
        paths = self.emit(live, drafts, hidden)
        for index in step.branches:
            if live[index].reason is None:
                self.cache.accept(live[index], paths[index], drafts[index])
        outcome = StepOutcome(len(live), drafts, paths, drafted - began, time.perf_counter() - drafted)
        self.trace.append(outcome)
        if self.selector is not None:
            self.selector.observe(outcome)

    def draft(self, live):
        """A draft for each sequence, empty where none pays."""
        asked = None if self.drafter is None else self.selector.ask(len(live))
        if asked is None or not asked.tokens:
            return [Draft()] * len(live)
        states = [self.draft_state(sequence, asked) for sequence in live]
        drafts = self.drafter.propose_batch(states)
        if len(drafts) != len(states):
            raise ValueError(f"propose_batch gave {len(drafts)} drafts for {len(states)} states: give one for each")
        vocabulary = self.next_tokens.head.weight.size(0)
        for draft, state in zip(drafts, states, strict=True):
            check_draft(draft, state, vocabulary)
        kept = self.selector.keep(len(live), drafts)
        return [
            draft if len(nodes) == len(draft) else draft.keep(nodes) for draft, nodes in zip(drafts, kept, strict=True)
        ]

    def draft_state(self, sequence, asked):
        room = self.stop.max_new_tokens - len(sequence.tokens) - 1  # the token after the draft's last ends the sequence
        text = Text(sequence.prompt_tokens, sequence.tokens)
        hidden = sequence.hidden[-1][-1] if self.gives_hidden else None
        return DraftState(sequence.number, text, min(asked.tokens, room), min(asked.depth, room), asked.width, hidden)

    def emit(self, sequences, drafts, hidden):
        """Draws and verifies from hidden [R,H], appends what is gained and ends whom it ends: the accepted paths."""
        numbers, lengths = [s.number for s in sequences], [len(s.tokens) for s in sequences]
        emitted = self.next_tokens(hidden, drafts, numbers, lengths)
        gained, first = {}, 0
        for sequence, draft, one in zip(sequences, drafts, emitted, strict=True):
            count, sequence.reason = self.stop.count(sequence.tokens, one.tokens)
            rows = None
            if self.keep_hidden or self.gives_hidden:
                rows = hidden[[first, *(first + 1 + node for node in one.path)][:count]]
                sequence.hidden = [*sequence.hidden, rows] if self.keep_hidden else [rows]
            first += 1 + len(draft)
            sequence.tokens += one.tokens[:count]
            sequence.logprobs += one.logprobs[:count]
            sequence.sampling_logprobs += one.sampling_logprobs[:count]
            gained[sequence.number] = count
            if self.drafter is not None:
                self.drafter.observe(sequence.number, one.tokens[:count], rows if self.gives_hidden else None)
        self.step += 1
        ended = [sequence for sequence in self.live if sequence.reason is not None]
        self.live = [sequence for sequence in self.live if sequence.reason is None]
        self.finished += ended  # all of them, before an event may interrupt
        drafted, accepted = sum(map(len, drafts)), sum(len(one.path) for one in emitted)
        self.on_event(Stepped(self.now, self.step, gained, drafted, accepted))
        self.end_sequences(ended)
        return [one.path for one in emitted]

    def end_sequences(self, ended):
        for sequence in ended:
            siblings = any(other.prompt == sequence.prompt for other in self.cache.running if other is not sequence)
            self.cache.end(sequence, last=not siblings and not self.queues[sequence.prompt])
            self.on_event(Finished(self.now, sequence.number, sequence.reason, len(sequence.tokens)))
            if self.drafter is not None:
                self.begun.remove(sequence.number)
                self.drafter.finish(sequence.number)
