"""The demo's result as JSON and as a table."""

import json
import statistics
from importlib.metadata import PackageNotFoundError, version

from rich.table import Table

GRADIENT_LIMIT = 1e-5
PACKAGES = ("regrow", "torch", "transformers", "reasoning-gym")


def build_report(groups, questions_drawn, comparison, settings, phases):
    """Returns the report as nested dictionaries of numbers and strings; `phases` holds seconds by name."""
    replicated, packed = comparison.replicated, comparison.packed
    return {
        "settings": settings,
        "gradient": {"relative_l2": comparison.relative_l2, "limit": GRADIENT_LIMIT, "norm": gradient_norm(replicated)},
        "logprobs": {"max_difference": (packed.logp - replicated.logp).abs().max().item()},
        "tokens": {"dense": replicated.num_tokens, "packed": packed.num_tokens},
        "token_ratio": replicated.num_tokens / packed.num_tokens,
        "seconds": {
            "replicated": statistics.median(comparison.replicated_seconds),
            "packed": statistics.median(comparison.packed_seconds),
            "runs": {"replicated": comparison.replicated_seconds, "packed": comparison.packed_seconds},
            "phases": phases,
        },
        "speedup": comparison.speedup,
        "loss": {"replicated": replicated.loss, "packed": packed.loss},
        "rewards": [group.rewards for group in groups],
        "questions": [{"question": group.question, "answer": group.answer} for group in groups],
        "questions_drawn": questions_drawn,
        "responses": [group.texts for group in groups],
        "versions": versions(),
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
    tokens, seconds, loss, gradient = (report[key] for key in ("tokens", "seconds", "loss", "gradient"))
    result = Table(title="one GRPO update, the same data, fp32", title_justify="left")
    for heading in ("", "replicated", "packed", "replicated / packed"):
        result.add_column(heading, justify="right" if heading else "left")
    result.add_row("tokens", f"{tokens['dense']:,}", f"{tokens['packed']:,}", f"{report['token_ratio']:.2f} x")
    result.add_row("seconds", f"{seconds['replicated']:.2f}", f"{seconds['packed']:.2f}", f"{report['speedup']:.2f} x")
    result.add_row("loss", f"{loss['replicated']:.7f}", f"{loss['packed']:.7f}", "")
    result.add_section()
    result.add_row("gradient, relative L2", "", f"{gradient['relative_l2']:.2e}", f"limit {gradient['limit']:.0e}")
    result.add_row("log-probs, largest difference", "", f"{report['logprobs']['max_difference']:.2e}", "")
    rewards = [reward for group in report["rewards"] for reward in group]
    result.add_row("mean reward", f"{statistics.mean(rewards):.3f}", "", "the same samples")
    return result
