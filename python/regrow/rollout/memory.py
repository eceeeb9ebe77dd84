"""Bytes of a rollout's keys and values, by formula, and how many sequences at once fit a budget."""

import os
from dataclasses import dataclass

import torch

from regrow.rollout.cache import PREFILL_TOKENS, WINDOW_ROOM
from regrow.rollout.layout import Layout


@dataclass(frozen=True)
class KeyValueBytes:
    """Bytes of one token's keys and values: of all layers by window, None for those that see everything."""

    of_window: dict

    @classmethod
    def of(cls, shapes, longest):
        """From a `Shapes` that the model has run; windows that no sequence of `longest` tokens leaves are none."""
        found = {None: 0}
        for layer, window in shapes.windows.items():
            window = None if window is None or window >= longest else window
            found[window] = found.get(window, 0) + shapes.bytes[layer]
        return cls(found)

    @property
    def windows(self):
        return [window for window in self.of_window if window is not None]

    def of_layout(self, prompts, layout, max_live):
        """Bytes of the axes: of the layout's `capacity` positions for layers that see everything, and for a window of w
        at most of a forward's new tokens, the last w of each prompt and the last w of each sequence, with room."""
        total = layout.capacity * self.of_window[None]
        for window in self.windows:
            response = min(layout.slice_tokens, window + WINDOW_ROOM)
            kept = min(prompts.num_tokens, len(prompts.unique) * window)
            positions = min(layout.capacity, PREFILL_TOKENS + kept + max_live * response)
            total += positions * self.of_window[window]
        return total


def fit(prompts, slice_tokens, max_live, bytes_per_token, budget_bytes):
    """(layout, its predicted bytes). Raises ValueError if they exceed the budget, with the largest batch that fits."""

    def lay_out(live):
        layout = Layout(prompts, slice_tokens, live)
        return layout, bytes_per_token.of_layout(prompts, layout, live)

    layout, needed = lay_out(max_live)
    if needed <= budget_bytes:
        return layout, needed
    fitting, too_many = 0, max_live
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        fitting, too_many = (middle, too_many) if lay_out(middle)[1] <= budget_bytes else (fitting, middle)
    remedy = f"max_batch={fitting} fits" if fitting else f"one alone needs {lay_out(1)[1]:,}"
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
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":") for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
