"""The demo's result as JSON and as a table."""

import json
import statistics
from importlib.metadata import PackageNotFoundError, version

from rich.table import Table

GRADIENT_LIMIT = 1e-5
PACKAGES = ("regrow", "torch", "transformers", "reasoning-gym")


def comparison_report(comparison, groups, questions_seen):
    """The part of the report on one update computed twice."""
    replicated, packed = comparison.replicated, comparison.packed
    token_ratio = replicated.num_tokens / packed.num_tokens
    return {
        "gradient": {"relative_l2": comparison.relative_l2, "limit": GRADIENT_LIMIT, "norm": gradient_norm(replicated)},
        "logprobs": {"max_difference": (packed.logp - replicated.logp).abs().max().item()},
        "tokens": {"dense": replicated.num_tokens, "packed": packed.num_tokens},
        "token_ratio": token_ratio,
        "seconds": {
            **{name: statistics.median(seconds) for name, seconds in comparison.seconds.items()},
            "runs": comparison.seconds,
        },
        "peak_bytes": comparison.peak_bytes,
        "speedup": comparison.speedup,
        "speedup_over_token_ratio": comparison.speedup / token_ratio,
        "loss": {"replicated": replicated.loss, "packed": packed.loss},
        "compared": {
            "rewards": [group.rewards for group in groups],
            "questions": [{"question": group.question, "answer": group.answer} for group in groups],
            "responses": [group.texts for group in groups],
            "questions_seen": questions_seen,
        },
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


def table(report):
    """The report's numbers as a rich table."""
    result = Table(title="one GRPO update, the same data, fp32", title_justify="left")
    for heading in ("", "replicated", "packed", "replicated / packed"):
        result.add_column(heading, justify="right" if heading else "left")
    tokens, seconds, memory, loss = (report[key] for key in ("tokens", "seconds", "peak_bytes", "loss"))
    megabytes = {name: count / 1e6 for name, count in memory.items()}
    result.add_row("tokens", f"{tokens['dense']:,}", f"{tokens['packed']:,}", f"{report['token_ratio']:.2f} x")
    result.add_row("seconds", f"{seconds['replicated']:.2f}", f"{seconds['packed']:.2f}", f"{report['speedup']:.2f} x")
    result.add_row(
        "live MB at the peak, beyond weights",
        f"{megabytes['replicated']:,.0f}",
        f"{megabytes['packed']:,.0f}",
        f"{megabytes['replicated'] / megabytes['packed']:.2f} x",
    )
    result.add_row("loss", f"{loss['replicated']:.7f}", f"{loss['packed']:.7f}", "")
    gradient = report["gradient"]
    result.add_row("gradient, relative L2", "", f"{gradient['relative_l2']:.2e}", f"limit {gradient['limit']:.0e}")
    result.add_section()
    first, last = report["reward_first_five"], report["reward_last_five"]
    heldout = report["heldout"]
    result.add_row(f"mean reward, {len(report['rewards'])} packed updates in bf16", f"{first:.3f}", f"{last:.3f}", "")
    result.add_row("held-out questions, greedy", f"{heldout['before']:.3f}", f"{heldout['after']:.3f}", "")
    return result
