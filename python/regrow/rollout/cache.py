"""A rollout's K/V cache: prompts and sequences on the axis of a layout, and the forwards that fill it."""

import numpy as np
import torch

from regrow.rollout.axis import Axis, Places
from regrow.rollout.step import Step

PREFILL_TOKENS = 1024  # of one forward, which bounds its activations
ROOM = 64  # places that an axis has for what a sequence fills next


class Cache:
    """model: `ModelForward`; prompts: `Prompts`; layout: `Layout`; windows: from those of the model's layers, None
    among them, to those of their axes (`KeyValueBytes`). keep_hidden: whether the hidden states of all prompt tokens
    are kept, or each node's last."""

    def __init__(self, model, prompts, layout, windows, *, keep_hidden, device):
        self.model, self.prompts, self.layout = model, prompts, layout
        self.keep_hidden, self.device = keep_hidden, device
        self.places = Places(layout.capacity)
        axes = {window: Axis(self.places, window, self.visible, device) for window in set(windows.values())}
        self.axes = list(axes.values())
        self.axis_of = {window: axes[own] for window, own in windows.items()}
        self.filled = [0] * len(prompts.nodes)  # tokens of each node whose keys are on the axis
        self.node_hidden = {}  # node -> hidden states of its tokens, or of its last one alone
        self.running = []  # sequences that have a slice
        self.started = [0] * len(prompts.unique)  # sequences of each prompt that have had one
        self.peak_bytes = self.num_rows = 0  # num_rows: tokens that passed through the model

    def admit(self, prompt):
        """Gives the prompt its place; False if there is no room yet."""
        new = self.layout.admit(prompt)
        for node in new or ():
            begin, count = self.layout.begin[node], len(self.prompts.nodes[node].tokens)
            self._own(slice(begin, begin + count), self.layout.end(node), self.prompts.nodes[node].depth)
        return new is not None

    def start(self, sequence):
        """Gives the sequence a slice of its prompt's interval; there must be a free one."""
        begin = sequence.begin = self.layout.take_slice(sequence.prompt)
        end = begin + self.layout.slice_tokens
        self._own(slice(begin, end), end, len(sequence.prompt_tokens))
        self.running.append(sequence)
        self.started[sequence.prompt] += 1

    def _own(self, places, end, depth):
        """Empties the places, for tokens of one path from this depth on that queries see up to `end`."""
        self.places.set(places, end, depth + np.arange(places.stop - places.start))
        for axis in self.axes:
            axis.forget(places)

    def end(self, sequence, *, last):
        """Takes the slice back; `last`: no sequence of its prompt is running or waiting."""
        self.running.remove(sequence)
        self.layout.give_slice(sequence.prompt, sequence.begin)
        if last:
            self.layout.release(sequence.prompt)
            for node in self.prompts.paths[sequence.prompt]:
                if self.layout.begin[node] < 0 and not self.keep_hidden:
                    self.node_hidden.pop(node, None)

    def fill(self, prompts):
        """Runs the model on what is not on the axis yet of these prompts, a piece at a time in its order."""
        nodes = {node for prompt in prompts for node in self.prompts.paths[prompt]}
        nodes = [node for node in nodes if self.filled[node] < len(self.prompts.nodes[node].tokens)]
        nodes.sort(key=lambda node: self.layout.begin[node])
        if not nodes:
            return
        counts = [len(self.prompts.nodes[node].tokens) for node in nodes]
        tokens = np.concatenate([np.array(self.prompts.nodes[node].tokens, np.int64) for node in nodes])
        places = np.concatenate([self.layout.begin[n] + np.arange(c) for n, c in zip(nodes, counts, strict=True)])
        node_of = np.repeat(nodes, counts)
        for begin in range(0, len(tokens), PREFILL_TOKENS):
            piece = slice(begin, begin + PREFILL_TOKENS)
            self._keep_hidden(node_of[piece], self.forward(places[piece], tokens[piece]))
        for axis in self.axes:
            axis.trim()

    def _keep_hidden(self, node_of, hidden):
        """hidden [R,H] of tokens of the nodes `node_of` [R]."""
        for node in dict.fromkeys(node_of.tolist()):
            rows = np.flatnonzero(node_of == node)
            self.filled[node] += len(rows)
            if self.keep_hidden:
                before = [self.node_hidden[node]] if node in self.node_hidden else []
                self.node_hidden[node] = torch.cat([*before, hidden[rows[0] : rows[-1] + 1]])
            else:
                self.node_hidden[node] = hidden[rows[-1] :][:1].clone()

    def last_hidden(self, prompt):
        """[H], of the prompt's last token."""
        path = self.prompts.paths[prompt]
        return self.node_hidden[next(node for node in reversed(path) if self.prompts.nodes[node].tokens)][-1]

    def prompt_hidden(self, prompt):
        """[P,H], of all its tokens, where they are kept."""
        path = self.prompts.paths[prompt]
        return torch.cat([self.node_hidden[node] for node in path if self.prompts.nodes[node].tokens])

    def forward(self, places, tokens, trees=()):
        """Hidden states [R,H] of tokens at sorted places, whose keys are on the axis from then on.

        trees: (places, ends, depths) of drafts with branches, which hold for this forward.
        """
        for tree in trees:
            self.places.set(*tree)
        for axis in self.axes:
            axis.make_room(places)
            for tree_places, *_ in trees:
                axis.update(tree_places)
        step = Step(self.axis_of, places, tokens, self.places.depths[places], self.device)
        hidden = self.model(step)
        self.num_rows += len(places)
        self.peak_bytes = max(self.peak_bytes, sum(axis.kv_bytes for axis in self.axes))
        return hidden

    def accept(self, sequence, path, draft):
        """Behind the sequence's last tokens lie a draft's; those on the path come to follow each other."""
        # The path's nodes precede the token that was drawn after them, the last one.
        first = sequence.root - len(path)
        places = first + np.arange(len(draft))
        end = sequence.begin + self.layout.slice_tokens
        self.places.set(places, end, len(sequence.prompt_tokens) + places - sequence.begin)
        for axis in self.axes:
            axis.update(places)
            if path != list(range(len(path))):
                axis.move(first + np.array(path), first + np.arange(len(path)))

    def visible(self, window, places):
        """Over all places: what queries with this window will see or fill next, and `places`."""
        seen = np.zeros(self.layout.capacity, bool)
        seen[places] = True
        waiting = (p for p, count in enumerate(self.prompts.counts) if self.started[p] < count)
        for prompt in {*waiting, *(sequence.prompt for sequence in self.running)}:
            self._mark_prompt(seen, prompt, window)
        for sequence in self.running:
            first = 0 if window is None else max(0, sequence.depth - window + 1 - len(sequence.prompt_tokens))
            end = min(sequence.root + ROOM, sequence.begin + self.layout.slice_tokens)
            seen[sequence.begin + first : end] = True
        return seen

    def _mark_prompt(self, seen, prompt, window):
        """What has a place of the prompt's path: without a window all, so that a long prompt is laid out once."""
        first_depth = 0 if window is None else self._next_depth(prompt) - window + 1
        for node in self.prompts.paths[prompt]:
            begin, depth = self.layout.begin[node], self.prompts.nodes[node].depth
            if begin >= 0:
                end = len(self.prompts.nodes[node].tokens) if window is None else self.filled[node]
                seen[begin + max(0, first_depth - depth) : begin + end] = True

    def _next_depth(self, prompt):
        """The depth of the next query below the prompt: of its own first token that is not filled, at the least."""
        for node in self.prompts.paths[prompt]:
            if self.filled[node] < len(self.prompts.nodes[node].tokens):
                return self.prompts.nodes[node].depth + self.filled[node]
        length = len(self.prompts.unique[prompt])
        if self.started[prompt] < self.prompts.counts[prompt]:
            return length
        return min(max(length, sequence.depth) for sequence in self.running if sequence.prompt == prompt)
