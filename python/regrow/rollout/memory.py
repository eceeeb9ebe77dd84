"""Bytes of a rollout's keys and values, by formula, and how many sequences at once fit a budget."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from regrow.rollout.cache import PREFILL_TOKENS, ROOM
from regrow.rollout.layout import Layout


@dataclass(frozen=True)
class KeyValueBytes:
    """Bytes of one token's keys and values, over all layers of a window. windows: from each of the model's, and None,
    to its axis's: None where no sequence is longer, which then sees everything."""

    of_window: dict
    windows: dict

    @classmethod
    def of(cls, shapes, longest):
        """From a `Shapes` that the model has run, for sequences of up to `longest` tokens."""
        windows = {window: window for window in (None, *shapes.windows.values())}
        windows = {window: None if window is None or window >= longest else window for window in windows}
        found = dict.fromkeys(windows.values(), 0)
        for layer, window in shapes.windows.items():
            found[windows[window]] += shapes.bytes[layer]
        return cls(found, windows)

    def at_most(self, prompts, slice_tokens, max_live):
        """Bytes of the axes, of which the largest positions are, for layers that see everything, the tokens of prompts
        that have a place and a slice for each live sequence; for a window of w those of a forward's new tokens, the
        last w of each prompt and the last w of each sequence, with room."""
        placed = min(prompts.num_tokens, Layout(prompts, 0, max_live).capacity)
        total = 0
        for window, token_bytes in self.of_window.items():
            positions = placed + max_live * slice_tokens
            if window is not None:
                kept = min(placed, len(prompts.unique) * window)
                positions = min(positions, PREFILL_TOKENS + kept + max_live * min(slice_tokens, window + ROOM))
            total += positions * token_bytes
        return total


def fit(prompts, slice_tokens, max_live, bytes_per_token, budget_bytes):
    """The predicted bytes. Raises ValueError if they exceed the budget, with the largest batch that fits."""

    def predict(live):
        return bytes_per_token.at_most(prompts, slice_tokens, live)

    needed = predict(max_live)
    if needed <= budget_bytes:
        return needed
    fitting, too_many = 0, max_live
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        fitting, too_many = (middle, too_many) if predict(middle) <= budget_bytes else (fitting, middle)
    remedy = f"max_batch={fitting} fits" if fitting else f"one alone needs {predict(1):,}"
    raise ValueError(
        f"keys and values of {max_live} sequences at once need {needed:,} bytes, and {budget_bytes:,} are there: "
        f"{remedy}; or shorten max_new_tokens"
    )


def available_bytes(device):
    """What may still be allocated on the device, for all that is known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, container_bytes())


def container_bytes(root=Path("/sys/fs/cgroup")):
    """What a control group leaves, which may be less than the machine has."""
    try:
        return int((root / "memory.max").read_text()) - int((root / "memory.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return math.inf
