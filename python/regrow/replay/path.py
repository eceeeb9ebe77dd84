"""Keys and values of the current root-to-segment path, and the gradients they collect.

Each layer has one buffer of `capacity` slots. A path token's slot is its position id; the segment that runs lies behind
the path, so the keys of a call are one interval. Gradients are float32 (float64) and have the same slots: a segment's
backward adds to those of its whole path and takes its own, which its descendants have left there.
"""

from dataclasses import dataclass, field

import torch

from regrow.dtypes import accumulation_dtype

LARGEST_DIFFERENCE = 1e-2  # between two runs of a segment, relative L2: rounding is below, dropout or noise above


@dataclass(eq=False)
class Slots:
    """One layer's buffers: keys [capacity,Hkv,D], values [capacity,Hkv,Dv], and their gradients once there are any."""

    keys: torch.Tensor
    values: torch.Tensor
    dkeys: torch.Tensor | None = None
    dvalues: torch.Tensor | None = None

    @classmethod
    def like(cls, key, value, capacity):
        return cls(*(x.new_empty(capacity, *x.shape[1:]) for x in (key, value)))

    def gradients(self):
        """(dkeys, dvalues), which start at zero."""
        if self.dkeys is None:
            self.dkeys, self.dvalues = (
                torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in (self.keys, self.values)
            )
        return self.dkeys, self.dvalues


@dataclass(eq=False)
class Repeats:
    """What was compared between the two runs of inner segments: elements, and how many of them differ."""

    compared: int = 0
    differing: torch.Tensor | int = 0
    difference: torch.Tensor | float = 0.0  # sums of squares, of the segment that runs
    magnitude: torch.Tensor | float = 0.0

    def compare(self, now, before):
        now = now.detach()
        same = (now == before) | (now.isnan() & before.isnan())
        self.compared += now.numel()
        self.differing = self.differing + (~same).sum()
        self.difference = self.difference + (now - before).double().square().masked_fill_(same, 0.0).sum()
        self.magnitude = self.magnitude + before.double().square().nansum()

    def check(self, segment):
        """Raises RuntimeError if the segment's second run is another computation than its first; forgets its sums."""
        difference, magnitude = float(self.difference), float(self.magnitude)
        self.difference = self.magnitude = 0.0
        if not difference <= LARGEST_DIFFERENCE**2 * magnitude:
            raise RuntimeError(
                f"tokens {segment.begin} to {segment.end} were run twice, and their keys and values differ by "
                f"{(difference / magnitude) ** 0.5 if magnitude else float('inf'):.1e} of their norm: the model is not "
                "deterministic (dropout, noise, a state of its own), so no exact gradient can be replayed; "
                "switch that off, or use prefix_grad='detached' without checkpoints, which runs each segment once"
            )


@dataclass(eq=False)
class Path:
    """The slots of all layers. `layers` is keyed by whatever a layer passes as itself: its module, for transformers.

    exact: whether gradients of the path are collected; without, a segment keeps those of its own keys only.
    """

    capacity: int
    exact: bool = True
    layers: dict = field(default_factory=dict)
    trained: dict = field(default_factory=dict)  # layer -> whether its keys or values need a gradient
    repeats: Repeats = field(default_factory=Repeats)

    def slots(self, layer, key, value):
        """The layer's `Slots`, made by its first call; key [S,Hkv,D], value [S,Hkv,Dv].

        Raises RuntimeError for another dtype or shape than that call's.
        """
        if layer not in self.layers:
            self.layers[layer] = Slots.like(key, value, self.capacity)
        found = self.layers[layer]
        for name, new, old in (("keys", key, found.keys), ("values", value, found.values)):
            if old.shape[1:] != new.shape[1:] or old.dtype != new.dtype:
                raise RuntimeError(
                    f"a layer's {name} are {new.dtype} of {list(new.shape[1:])} and were {old.dtype} of "
                    f"{list(old.shape[1:])}: give each layer its own key in attend(layer, ...)"
                )
        return found

    def check_taken(self, run):
        """Raises RuntimeError unless the run's backward took the gradients that its segment's descendants had left."""
        left = [layer for layer, slots in self.layers.items() if slots.dkeys is not None and layer not in run.consumed]
        if left:
            raise RuntimeError(
                f"the backward of {len(left)} layers did not run for tokens {run.segment.begin} to {run.segment.end}, "
                "so gradients of their keys would be lost: every layer must pass its attention's result on"
            )

    def num_bytes(self):
        """(bytes of keys and values, bytes of their gradients)"""
        tensors = [
            [x for slots in self.layers.values() for x in pair(slots) if x is not None]
            for pair in (lambda s: (s.keys, s.values), lambda s: (s.dkeys, s.dvalues))
        ]
        return tuple(sum(x.nbytes for x in group) for group in tensors)
