"""The token axis of a rollout: who sees whom, and keys and values of the layers that share a window.

A `Layout` reserves places for all that sequences may become. An `Axis` has positions only for the places that a later
query can see and for those that are filled next, in the same order; when it has no more room it is laid out anew. So
memory and time follow what is there, not what is reserved.
"""

import numpy as np
import torch

import regrow


class Places:
    """Of every place of a layout: one past the last place that sees it, and its depth. int64 arrays [capacity]."""

    def __init__(self, capacity):
        self.ends, self.depths = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)

    def set(self, places, ends, depths):
        self.ends[places], self.depths[places] = ends, depths


class Axis:
    """window: of its layers, or None. visible(window, places): a boolean array over all places, true for filled ones
    that a later query sees, for those that sequences fill next, and for `places`.

    What plans and kernels read: subtree_end int32 and position_ids int64 [positions] on the model's device; the host
    copies are the same tensors on the CPU.
    """

    def __init__(self, places, window, visible, device):
        self.places, self.window, self.visible = places, window, visible
        self.device = torch.device(device)
        self.layers = {}  # layer -> (keys, values), each [positions, heads, dim]
        self.place = np.empty(0, np.int64)  # of each position
        self.position = np.full(len(places.ends), -1, np.int64)  # of each place, -1 for none
        self._read_places()

    def _read_places(self):
        """Ends and depths of all positions, from those of their places."""
        ends = np.searchsorted(self.place, self.places.ends[self.place]).astype(np.int32)
        self.host_subtree_end = torch.from_numpy(ends)
        self.host_position_ids = torch.from_numpy(self.places.depths[self.place])
        self.subtree_end = self.host_subtree_end.to(self.device)
        self.position_ids = self.host_position_ids.to(self.device)
        self.plans = {}

    @property
    def num_tokens(self):
        return self.host_subtree_end.size(0)

    @property
    def kv_bytes(self):
        return sum(x.nbytes for pair in self.layers.values() for x in pair)

    def positions(self, places):
        """Places that have positions -> these, int64 on the host."""
        return torch.from_numpy(self.position[places])

    def update(self, places):
        """Reads anew who sees these places, and how deep they are."""
        positions = self.positions(places)
        ends = np.searchsorted(self.place, self.places.ends[places]).astype(np.int32)
        depths = self.places.depths[places]
        self.host_subtree_end[positions], self.host_position_ids[positions] = map(torch.from_numpy, (ends, depths))
        if self.device.type != "cpu":
            positions = positions.to(self.device)
            self.subtree_end[positions] = torch.from_numpy(ends).to(self.device)
            self.position_ids[positions] = torch.from_numpy(depths).to(self.device)

    def forget(self, places):
        """What lies at these places belongs to somebody who has ended."""
        self.position[places] = -1

    def make_room(self, places):
        """Lays the axis out anew if one of these places has no position."""
        if (self.position[places] < 0).any():
            self._lay_out(self.visible(self.window, places))

    def trim(self):
        """Lays the axis out anew if most of it is seen no more."""
        kept = self.visible(self.window, np.empty(0, np.int64))
        if 2 * kept.sum() < len(self.place):
            self._lay_out(kept)

    def _lay_out(self, kept):
        before, self.place = self.position, np.flatnonzero(kept)
        self.position = np.full(len(kept), -1, np.int64)
        self.position[self.place] = np.arange(len(self.place))
        source = before[self.place]
        target = np.flatnonzero(source >= 0)
        source, target = (torch.from_numpy(x).to(self.device) for x in (source[target], target))
        for layer, pair in self.layers.items():  # one layer at a time is there twice
            self.layers[layer] = tuple(
                x.new_empty(len(self.place), *x.shape[1:]).index_copy_(0, target, x.index_select(0, source))
                for x in pair
            )
        self._read_places()

    def write(self, layer, positions, key, value):
        """Puts keys [R,Hkv,D] and values [R,Hkv,Dv] at their positions; returns the layer's whole axis."""
        if layer not in self.layers:
            self.layers[layer] = tuple(x.new_empty(self.num_tokens, *x.shape[1:]) for x in (key, value))
        keys, values = self.layers[layer]
        return keys.index_copy_(0, positions, key), values.index_copy_(0, positions, value)

    def move(self, source, target):
        """Copies keys and values from the places `source` to `target`."""
        source, target = (self.positions(places).to(self.device) for places in (source, target))
        for pair in self.layers.values():
            for x in pair:
                x.index_copy_(0, target, x.index_select(0, source))

    def plan(self, query_heads, kv_heads, head_dim, positions):
        return regrow.plan(
            self, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, window=self.window,
            query_index=positions,
        )  # fmt: skip
