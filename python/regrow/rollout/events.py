"""What a rollout tells whoever schedules beside it. Times are seconds since it began."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """A sequence has its slice, and its first token is drawn next. prompt_tokens: of its prompt, shared or not."""

    time: float
    sequence: int
    prompt_tokens: int


@dataclass(frozen=True)
class Stepped:
    """One forward is over. tokens: sequence -> how many tokens it gained; drafted, accepted: over all sequences."""

    time: float
    step: int
    tokens: dict[int, int]
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Finished:
    """A sequence has ended. reason: "stop" or "length"; num_tokens: of its response."""

    time: float
    sequence: int
    reason: str
    num_tokens: int


@dataclass(frozen=True)
class Idle:
    """The number of slots without a sequence has changed, and no waiting sequence, if any, has room in one of them."""

    time: float
    slots: int
    live: int
