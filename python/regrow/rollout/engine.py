"""The rollout's loop: sequences start where there is room, step together, and have their drafts verified."""

import time
from collections import deque

import torch

from regrow.rollout.drafters import Draft, DraftState, check_draft
from regrow.rollout.events import Finished, Idle, Started, Stepped
from regrow.rollout.result import StepStats
from regrow.rollout.selector import StepOutcome
from regrow.rollout.sequences import Sequence, Text, place


class Engine:
    """cache: `Cache`; next_tokens: `NextTokens`; stop: `Stop`; drafter and selector, or None for both; on_event: takes
    each event, or None; keep_hidden: whether the hidden states of responses are kept."""

    def __init__(self, cache, next_tokens, stop, *, max_live, drafter, selector, on_event, keep_hidden):
        self.cache, self.next_tokens, self.stop = cache, next_tokens, stop
        self.max_live, self.drafter, self.selector = max_live, drafter, selector
        self.on_event, self.keep_hidden = on_event, keep_hidden
        self.gives_hidden = drafter is not None and drafter.wants_hidden
        self.prompts = cache.prompts
        self.queues = [deque() for _ in self.prompts.unique]  # sequences of each prompt that have not started
        for number, prompt in enumerate(self.prompts.of_sequence):
            self.queues[prompt].append(number)
        self.next_prompt = 0  # the first that has no place yet
        self.waiting = {}  # prompts that have a place and a queue, in their order; the values mean nothing
        self.live, self.finished = [], []
        self.begun = set()  # sequences that the drafter was told of, and not that they ended
        self.num_steps, self.idle = 0, 0
        self.started_at = time.perf_counter()
        self.prefill_seconds = 0.0
        self.trace = []  # a `StepStats` for each decoding step

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

    def tell(self, event):
        if self.on_event is not None:
            self.on_event(event)

    # ---- Starting ----

    def start_sequences(self):
        """Fills the free slots. Sequences that end with their first token leave room for more."""
        while new := self.admit():
            began = time.perf_counter()
            self.cache.fill({sequence.prompt for sequence in new})
            self.prefill_seconds += time.perf_counter() - began
            for sequence in new:
                self.tell(Started(self.now, sequence.number, len(sequence.prompt_tokens)))
            self.begin_drafting(new)
            self.live += new
            self.emit(new, [Draft()] * len(new), torch.stack([self.cache.last_hidden(s.prompt) for s in new]))
        idle = self.max_live - len(self.live)
        if idle != self.idle:
            self.idle = idle
            self.tell(Idle(self.now, idle, len(self.live)))

    def begin_drafting(self, sequences):
        if self.drafter is None:
            return
        prompts = {s.prompt for s in sequences} if self.gives_hidden else ()
        hidden = {prompt: self.cache.prompt_hidden(prompt)[:-1] for prompt in prompts}
        for sequence in sequences:
            self.drafter.begin(sequence.number, sequence.prompt_tokens, hidden.get(sequence.prompt))
            self.begun.add(sequence.number)

    def admit(self):
        """New sequences with slices: siblings of prompts on the axis first, then prompts in their order."""
        new = []
        while len(self.live) + len(new) < self.max_live and (prompt := self.prompt_with_room()) is not None:
            new.append(Sequence(self.queues[prompt].popleft(), prompt, self.prompts.unique[prompt]))
            self.cache.start(new[-1])
            if not self.queues[prompt]:
                del self.waiting[prompt]
        return new

    def prompt_with_room(self):
        for prompt in self.waiting:
            if self.cache.layout.free_slices[prompt]:
                return prompt
        if self.next_prompt == len(self.queues) or not self.cache.admit(self.next_prompt):
            return None
        self.waiting[self.next_prompt] = None
        self.next_prompt += 1
        return self.next_prompt - 1

    # ---- Stepping ----

    def decode(self):
        """One forward over the last tokens of all live sequences and what is drafted behind them."""
        began = time.perf_counter()
        live = sorted(self.live, key=lambda sequence: sequence.begin)
        drafts = self.draft(live)
        drafted = time.perf_counter()
        step = place(live, drafts)
        hidden = self.cache.forward(step.places, step.tokens, step.branches.values())
        paths, gained = self.emit(live, drafts, hidden)
        for index in step.branches:
            if live[index].reason is None:
                self.cache.accept(live[index], paths[index], drafts[index])
        seconds = drafted - began, time.perf_counter() - drafted
        self.trace.append(StepStats(len(live), sum(map(len, drafts)), sum(gained.values()) - len(live), *seconds))
        if self.selector is not None:
            self.selector.observe(StepOutcome(len(live), drafts, paths, *seconds))

    def draft(self, live):
        """A draft for each sequence, empty where none pays, or where the next token is the last."""
        drafts = [Draft()] * len(live)
        asked = None if self.drafter is None else self.selector.ask(len(live))
        if asked is None or not asked.tokens:
            return drafts
        states = {index: state for index, s in enumerate(live) if (state := self.draft_state(s, asked)).max_tokens}
        proposed = self.drafter.propose_batch(list(states.values())) if states else []
        if len(proposed) != len(states):
            raise ValueError(f"propose_batch gave {len(proposed)} drafts for {len(states)} states: give one for each")
        vocabulary = self.next_tokens.head.weight.size(0)
        for (index, state), draft in zip(states.items(), proposed, strict=True):
            drafts[index] = check_draft(draft, state, vocabulary)
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
        """Draws and verifies from hidden [R,H], appends what is gained and ends whom it ends.

        Returns the accepted paths, and how many tokens each sequence gained, by its number.
        """
        numbers, lengths = [s.number for s in sequences], [len(s.tokens) for s in sequences]
        emitted = self.next_tokens(hidden, drafts, numbers, lengths)
        gained, first = {}, 0
        for sequence, draft, one in zip(sequences, drafts, emitted, strict=True):
            count, sequence.reason = self.stop.count(sequence.tokens, one.tokens)
            sequence.append(one, count)
            gained[sequence.number] = count
            rows = self.keep_rows(sequence, hidden, [first, *(first + 1 + node for node in one.path)][:count])
            first += 1 + len(draft)
            if self.drafter is not None:
                self.drafter.observe(sequence.number, one.tokens[:count], rows if self.gives_hidden else None)
        self.num_steps += 1
        ended = [sequence for sequence in self.live if sequence.reason is not None]
        self.live = [sequence for sequence in self.live if sequence.reason is None]
        self.finished += ended  # all of them, before an event may interrupt
        drafted, accepted = sum(map(len, drafts)), sum(gained.values()) - len(gained)
        self.tell(Stepped(self.now, self.num_steps, gained, drafted, accepted))
        self.end_sequences(ended)
        return [one.path for one in emitted], gained

    def keep_rows(self, sequence, hidden, rows):
        """The hidden states of these rows, if anybody wants them; without `keep_hidden` only the newest are kept."""
        if not (self.keep_hidden or self.gives_hidden):
            return None
        kept = hidden[rows]
        if not self.keep_hidden:
            sequence.hidden.clear()
        sequence.hidden.append(kept)
        return kept

    def end_sequences(self, ended):
        for sequence in ended:
            siblings = any(other.prompt == sequence.prompt for other in self.cache.running if other is not sequence)
            self.cache.end(sequence, last=not siblings and not self.queues[sequence.prompt])
            self.tell(Finished(self.now, sequence.number, sequence.reason, len(sequence.tokens)))
            if self.drafter is not None:
                self.begun.remove(sequence.number)
                self.drafter.finish(sequence.number)
