"""The demo's result as JSON and as a table."""

import json
import statistics
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

GRADIENT_LIMIT = 1e-5  # of the distance to the replicated gradient in fp64
PACKAGES = ("regrow", "torch", "transformers", "reasoning-gym")


def comparison_report(comparison, groups, questions_seen):
    """The part of the report on one update computed in three ways."""
    updates = comparison.updates
    replicated, packed, replayed = (updates[name] for name in ("replicated", "packed", "replayed"))
    token_ratio = replicated.num_tokens / packed.num_tokens
    others, found = {"packed": packed, "replayed": replayed}, comparison.relative_l2
    return {
        "gradient": {
            "relative_l2": max(
                (found["packed"], found["replayed"]), key=lambda value: (value != value, value)
            ),  # nan first
            **found,
            "limit": GRADIENT_LIMIT,
            "norm": gradient_norm(replicated),
        },
        "logprobs": {
            "max_difference": {
                name: (other.logp - replicated.logp).abs().max().item() for name, other in others.items()
            },
        },
        "tokens": {"dense": replicated.num_tokens, "packed": packed.num_tokens},
        "token_ratio": token_ratio,
        "seconds": {
            **{name: statistics.median(seconds) for name, seconds in comparison.seconds.items()},
            "runs": comparison.seconds,
        },
        "peak_bytes": comparison.peak_bytes,
        "speedup": comparison.speedup("packed"),
        "speedup_replayed": comparison.speedup("replayed"),
        "speedup_over_token_ratio": comparison.speedup("packed") / token_ratio,
        "loss": {name: update.loss for name, update in updates.items()},
        "replay": {name: asdict(other.stats) for name, other in others.items()},
        "compared": {
            "rewards": [group.rewards for group in groups],
            "questions": [{"question": group.question, "answer": group.answer} for group in groups],
            "responses": [group.texts for group in groups],
            "questions_seen": questions_seen,
        },
    }


def ledger_report(ledgers):
    """The part of the report on memory; ledgers: {way: {line: `ledger.Entry`}}."""
    return {
        way: {
            line: {**asdict(entry), "ratio": entry.predicted / entry.measured if entry.measured else None}
            for line, entry in found.items()
        }
        for way, found in ledgers.items()
    }


def rollout_report(stats):
    """The part of the report on rollouts: lists hold one number each, the trace one row a step of the last."""
    return {
        "tokens": [one.tokens for one in stats],
        "tokens_per_second": [one.tokens_per_second for one in stats],
        "acceptance_length": [one.acceptance_length for one in stats],
        "drafted": [one.drafted for one in stats],
        "accepted": [one.accepted for one in stats],
        "steps": [one.steps for one in stats],
        "steps_that_draft": [sum(step.drafted > 0 for step in one.trace) for one in stats],
        "trace": [step._asdict() for step in stats[-1].trace],
    }


def learning_report(steps, before, after):
    """The part of the report on learning: lists hold one number a step."""
    rewards = [step.reward for step in steps]
    return {
        "rewards": rewards,
        "reward_first_five": statistics.mean(rewards[:5]),
        "reward_last_five": statistics.mean(rewards[-5:]),
        "heldout": {"before": before, "after": after},
        "learning": {
            "loss": [step.loss for step in steps],
            "gradient_norm": [step.gradient_norm for step in steps],
            "groups_that_differ": [step.groups_that_differ for step in steps],
            "tokens": {
                "dense": [step.tokens_dense for step in steps],
                "packed": [step.tokens_packed for step in steps],
            },
            "replay": {
                name: [getattr(step.replay, name, 0) for step in steps]
                for name in ("segments", "inner_segments", "forward_tokens", "differentiated_tokens")
            },
            "seconds": {
                "rollout": [step.rollout_seconds for step in steps],
                "update": [step.update_seconds for step in steps],
            },
        },
    }


def gradient_norm(update):
    """L2 norm over all parameters, summed in fp64."""
    return sum(value.double().square().sum().item() for value in update.gradients.values()) ** 0.5


def versions():
    """Installed versions of what the numbers depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def write_report(report, path):
    """Writes the report to `path`, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
