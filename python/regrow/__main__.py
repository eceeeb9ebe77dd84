"""The command line: `python -m regrow demo`."""

import argparse
import sys


def main(arguments=None):
    """Parses the command line, runs the command, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m regrow", description="prefix-tree attention for RL post-training")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="SmolLM2 learns a task by GRPO on replayed trees; one update is also computed replicated, and compared",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--seed", type=int, default=0, help="of the questions and the samples")
    demo.add_argument("--task", default="chain_sum", help="a reasoning-gym task")
    demo.add_argument("--steps", type=positive, help="updates (30; quick: 3)")
    demo.add_argument("--group", type=group_size, help="sampled responses per question (8; quick: 4)")
    demo.add_argument("--model", help="a local transformers folder instead of SmolLM2's package")
    demo.add_argument("--out", default="demo/report.json", help="where the report goes, and report.png beside it")
    demo.add_argument("--quick", action="store_true", help="every part, but small: about a minute")
    return run_demo(**{key: value for key, value in vars(parser.parse_args(arguments)).items() if key != "command"})


def group_size(text):
    """At least two responses: one has no spread of rewards."""
    size = int(text)
    if size < 2:
        raise argparse.ArgumentTypeError(f"a group needs at least 2 responses, got {size}")
    return size


def positive(text):
    """An integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def run_demo(**options):
    """Runs the demo; what a user can remedy is one line on stderr, not a traceback."""
    try:
        from regrow.demo import DemoError
        from regrow.demo.run import run
        from regrow.models.smollm2 import ModelUnavailableError
    except ImportError as error:
        return fail(error)
    try:
        return run(**options)
    except (DemoError, ModelUnavailableError) as error:
        return fail(error)


def fail(error):
    print(f"regrow demo: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
