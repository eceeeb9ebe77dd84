"""Activation replay: exact gradients of a whole tree on the memory of one path."""

from regrow.replay.model import Head, Replayable
from regrow.replay.update import ReplayResult, ReplayStats, backward, logprobs

__all__ = ["Head", "ReplayResult", "ReplayStats", "Replayable", "backward", "logprobs"]
