"""The token axis of a rollout: who sees whom, and every layer's keys and values on it.

Positions are those of `Layout`. An `Axis` has them all; a `WindowAxis`, for layers that look back `window` positions,
keeps only those that a later query can see, in the same order, and is laid out anew when it has no more room.
"""

import numpy as np
import torch

import regrow


class Axis:
    """What plans and kernels read, and each layer's keys and values [positions, heads, dim].

    subtree_end int32 and position_ids int64 [positions] are on the model's device; the host copies are the same
    tensors on the CPU, and the arrays `ends` and `depths` share their memory.
    """

    window = None

    def __init__(self, capacity, device):
        self.device = torch.device(device)
        self.layers = {}  # layer -> (keys, values)
        self._resize(capacity)

    def _resize(self, capacity):
        self.ends, self.depths = np.zeros(capacity, np.int32), np.zeros(capacity, np.int64)
        self.host_subtree_end, self.host_position_ids = torch.from_numpy(self.ends), torch.from_numpy(self.depths)
        self.plans = {}
        self.subtree_end, self.position_ids = self.host_subtree_end, self.host_position_ids
        if self.device.type != "cpu":
            self.subtree_end, self.position_ids = (x.to(self.device) for x in (self.subtree_end, self.position_ids))

    @property
    def num_tokens(self):
        return self.host_subtree_end.size(0)

    @property
    def kv_bytes(self):
        return sum(x.nbytes for pair in self.layers.values() for x in pair)

    def set(self, places, ends, depths):
        """Who sees the tokens at these positions, and how deep they are: slices or arrays."""
        self.ends[places], self.depths[places] = ends, depths
        if self.device.type != "cpu":
            if not isinstance(places, slice):
                places = torch.from_numpy(places).to(self.device)
            self.subtree_end[places] = torch.as_tensor(ends, dtype=torch.int32).to(self.device)
            self.position_ids[places] = torch.as_tensor(depths).to(self.device)

    def positions(self, places):
        """Places of the layout -> int64 positions on this axis, on the host."""
        return torch.from_numpy(places)

    def write(self, layer, positions, key, value):
        """Puts keys [R,Hkv,D] and values [R,Hkv,Dv] at their positions; returns the layer's whole axis."""
        if layer not in self.layers:
            self.layers[layer] = tuple(x.new_empty(self.num_tokens, *x.shape[1:]) for x in (key, value))
        keys, values = self.layers[layer]
        return keys.index_copy_(0, positions, key), values.index_copy_(0, positions, value)

    def move(self, source, target):
        """Copies keys and values from the places `source` to `target`, arrays of the layout's positions."""
        source, target = (self.positions(places).to(self.device) for places in (source, target))
        for pair in self.layers.values():
            for x in pair:
                x.index_copy_(0, target, x.index_select(0, source))

    def plan(self, query_heads, kv_heads, head_dim, positions):
        return regrow.plan(
            self, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, window=self.window,
            query_index=positions,
        )  # fmt: skip


class WindowAxis(Axis):
    """The places of `full` that queries with this window can still see.

    `visible(window, places)` gives them: a boolean array over all places, true for filled ones that a later query sees,
    for those that sequences fill next, and for `places`.
    """

    def __init__(self, full, window, visible):
        self.full, self.window, self.visible = full, window, visible
        self.place = np.empty(0, np.int64)  # of each position here
        super().__init__(0, full.device)
        self.position = np.full(full.num_tokens, -1, np.int64)  # of each place

    def set(self, places, ends, depths):
        """Who sees the tokens at these places, which have positions here: called after `full.set`."""
        positions = self.position[places]
        super().set(positions, np.searchsorted(self.place, self.full.ends[places]), depths)

    def positions(self, places):
        return torch.from_numpy(self.position[places])

    def forget(self, places):
        """What lies at these places belongs to somebody who has ended."""
        self.position[places] = -1

    def make_room(self, places=()):
        """Lays the axis out anew if one of these places has no position here; without places, if most of it is seen no
        more."""
        if len(places) and (self.position[places] < 0).any():
            self._lay_out(self.visible(self.window, places))
        elif not len(places):
            kept = self.visible(self.window, places)
            if 2 * kept.sum() < len(self.place):
                self._lay_out(kept)

    def _lay_out(self, kept):
        before, self.place = self.position, np.flatnonzero(kept)
        self.position = np.full(len(kept), -1, np.int64)
        self.position[self.place] = np.arange(len(self.place))
        source = before[self.place]
        target = np.flatnonzero(source >= 0)
        source = torch.from_numpy(source[target]).to(self.device)
        target = torch.from_numpy(target).to(self.device)
        for layer, pair in self.layers.items():  # one layer at a time is there twice
            self.layers[layer] = tuple(
                x.new_empty(len(self.place), *x.shape[1:]).index_copy_(0, target, x.index_select(0, source))
                for x in pair
            )
        self._resize(len(self.place))
        if len(self.place):
            self.set(self.place, self.full.ends[self.place], self.full.depths[self.place])
