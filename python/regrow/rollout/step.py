"""One forward of a rollout: what a model is given in place of a tree."""

import torch

from regrow.dtypes import accumulation_dtype

_ops = torch.ops.regrow


class Step:
    """Tokens at sorted places of the axis. Models read `tokens` and `position_ids`, int64 [R]; layers call `attend`.

    axis_of: from each window that layers have, None for those without one, to its `Axis`.
    """

    def __init__(self, axis_of, places, tokens, depths, device):
        self.axis_of, self.places = axis_of, places
        self.host_position_ids = torch.from_numpy(depths)
        self.position_ids = self.host_position_ids.to(device)
        self.tokens = torch.from_numpy(tokens).to(device)
        self.subtree_end = axis_of[None].subtree_end  # whose device models compare with theirs
        self.positions, self.plans = {}, {}

    @property
    def num_tokens(self):
        return len(self.places)

    def attend(self, layer, q, k, v, *, scale=None, window=None, softcap=None, sinks=None):
        """Writes k [R,Hkv,D] and v [R,Hkv,Dv] to the axis and attends with q [R,Hq,D]; options as `tree_attention`."""
        if window not in self.axis_of:
            raise RuntimeError(
                f"a layer has a window of {window}, and none had in the model's first run: a layer's is fixed"
            )
        axis = self.axis_of[window]
        if window not in self.positions:
            host = axis.positions(self.places)
            self.positions[window] = host, host.to(axis.device)
        host, positions = self.positions[window]
        keys, values = axis.write(layer, positions, k, v)
        shape = (window, q.size(1), k.size(1), max(q.size(2), v.size(2)))
        if shape not in self.plans:
            self.plans[shape] = axis.plan(*shape[1:], host)
        if sinks is not None:
            sinks = sinks.to(accumulation_dtype(q.dtype))
        with torch._C._AutoDispatchBelowAutograd():  # nothing is differentiated: spares Python a step of each call
            out, _ = _ops.tree_attention_fwd(
                q, keys, values, axis.subtree_end, axis.position_ids, self.plans[shape], positions, 0, 0,
                q.size(-1) ** -0.5 if scale is None else float(scale), axis.window, softcap, sinks, False,
            )  # fmt: skip
        return out


class Shapes:
    """Stands in for a step of one token, and notes each layer's keys and values: what an axis will hold."""

    def __init__(self, token, device):
        self.tokens = torch.tensor([token], device=device)
        self.position_ids = torch.zeros(1, dtype=torch.int64, device=device)
        self.host_position_ids = torch.zeros(1, dtype=torch.int64)
        self.subtree_end = torch.ones(1, dtype=torch.int32, device=device)
        self.num_tokens = 1
        self.windows = {}  # layer -> window or None
        self.bytes = {}  # layer -> bytes of one token

    def attend(self, layer, q, k, v, *, window=None, sinks=None, **options):
        """A token that sees itself alone: its value, less a sink's share."""
        self.windows[layer], self.bytes[layer] = window, k.nbytes + v.nbytes
        return v.repeat_interleave(q.size(1) // v.size(1), dim=1).to(q.dtype)
