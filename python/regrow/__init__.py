"""regrow: packed prefix-tree attention, activation replay and draft co-training for RL post-training."""

import importlib

from regrow import (
    _load,  # noqa: F401  (registers torch.ops.regrow)
    reference,
    skinny,  # noqa: F401  (its fake)
)
from regrow.attention import LseMerge, TreeAttention, lse_merge, tree_attention
from regrow.gather import ReplayGather, ReplayScatter, replay_gather, replay_scatter
from regrow.logprobs import RowLogprobs, TreeLogprobs, row_logprobs, tree_logprobs
from regrow.plans import plan
from regrow.tree import PrefixTree

__version__ = "0.1.0"

__all__ = [
    "LseMerge",
    "PrefixTree",
    "ReplayGather",
    "ReplayScatter",
    "RowLogprobs",
    "TreeAttention",
    "TreeLogprobs",
    "explain",
    "lse_merge",
    "plan",
    "reference",
    "replay",
    "replay_gather",
    "replay_scatter",
    "rollout",
    "row_logprobs",
    "tree_attention",
    "tree_logprobs",
]


def __getattr__(name):
    # Modules that not every program needs load when they are asked for.
    if name == "explain":
        from regrow.performance import explain

        return explain
    if name in ("replay", "rollout"):
        return importlib.import_module(f"regrow.{name}")
    raise AttributeError(f"module 'regrow' has no attribute {name!r}")


def __dir__():
    return [*globals(), "explain", "replay", "rollout"]
