"""Activation replay: exact gradients of a whole tree on the memory of one path."""

from regrow.replay.ledger import Ledger
from regrow.replay.model import Head, Replayable
from regrow.replay.update import ReplayResult, ReplayStats, backward, logprobs, predict

__all__ = ["Head", "Ledger", "ReplayResult", "ReplayStats", "Replayable", "backward", "logprobs", "predict"]
