"""Activation replay: exact gradients of a whole tree on the memory of one path (docs/replay.md)."""

from regrow.replay import objectives
from regrow.replay.job import predict
from regrow.replay.ledger import Ledger
from regrow.replay.model import Head, Replayable
from regrow.replay.omitted import Omitted, omitted_gradient
from regrow.replay.partition import Part, partition
from regrow.replay.update import ReplayResult, ReplayStats, backward
from regrow.replay.values import logprobs

__all__ = [
    "Head",
    "Ledger",
    "Omitted",
    "Part",
    "ReplayResult",
    "ReplayStats",
    "Replayable",
    "backward",
    "logprobs",
    "objectives",
    "omitted_gradient",
    "partition",
    "predict",
]
