"""Rollouts on the tree: shared prompts, lossless speculation (docs/rollout.md)."""

from regrow.rollout.calibration import calibrate
from regrow.rollout.costs import CostTable
from regrow.rollout.drafters import Draft, Drafter, DraftState
from regrow.rollout.events import Finished, Idle, Started, Stepped
from regrow.rollout.generation import generate
from regrow.rollout.result import Rollout, Stats, StepStats
from regrow.rollout.sampling import Sampling
from regrow.rollout.selector import Calibrated, Fixed, Selector, StepOutcome
from regrow.rollout.strategy import NONE, Strategy
from regrow.rollout.suffix import SuffixDrafter

__all__ = [
    "NONE",
    "Calibrated",
    "CostTable",
    "Draft",
    "DraftState",
    "Drafter",
    "Finished",
    "Fixed",
    "Idle",
    "Rollout",
    "Sampling",
    "Selector",
    "Started",
    "Stats",
    "StepOutcome",
    "StepStats",
    "Stepped",
    "Strategy",
    "SuffixDrafter",
    "calibrate",
    "generate",
]
