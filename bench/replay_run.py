"""Every bar of replay, printed and written as JSON and as a page.

python bench/replay_run.py [SUITE ...] [--out bench/results/replay.json] [--markdown PAGE]
"""

import argparse
from pathlib import Path

import replay_memory
import replay_omitted
import replay_update
from report import machine, print_rows, write_markdown, write_rows

SUITES = {
    "update": replay_update.run,
    "accuracy": replay_update.accuracy,
    "digits": replay_update.digits,
    "memory": replay_memory.run,
    "long": replay_memory.long,
    "omitted": replay_omitted.run,
}
INTRO = ["Written by `python bench/replay_run.py`; [replay.md](replay.md) says what is measured and why."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--out", type=Path, default=Path("bench/results/replay.json"))
    parser.add_argument("--markdown", type=Path, help="also write a page")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}: choose from {', '.join(SUITES)}")
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    rows = []
    for suite in arguments.suites:
        measured = SUITES[suite]()
        print_rows(measured)
        rows += measured
        write_rows(rows, arguments.out)
    if arguments.markdown:
        write_markdown(rows, arguments.markdown, title="Replay, measured on the CPU", intro=INTRO)


if __name__ == "__main__":
    main()
