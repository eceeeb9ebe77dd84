"""`make bench`: every bar of the project, measured in one process, printed and written as JSON.

python bench/run.py [attention gather cost tree] [--rounds 5] [--out bench/results/bars.json] [--markdown PAGE]
"""

import argparse
from pathlib import Path

import attention_bars
import cost_bars
import gather_bars
import tree_bars
from report import machine, print_rows, write_markdown, write_rows

SUITES = {"attention": attention_bars.run, "gather": gather_bars.run, "cost": cost_bars.run, "tree": tree_bars.run}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=list(SUITES), metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds per workload")
    parser.add_argument("--out", type=Path, default=Path("bench/results/bars.json"))
    parser.add_argument("--markdown", type=Path, help="also write a page, if all suites run")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}: choose from {', '.join(SUITES)}")

    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    rows = []
    for suite in arguments.suites:
        measured = SUITES[suite](arguments.rounds)
        print_rows(measured)
        rows += measured
    write_rows(rows, arguments.out)
    if arguments.markdown and set(arguments.suites) == set(SUITES):
        write_markdown(rows, arguments.markdown)
    elif arguments.markdown:
        print(f"\n{arguments.markdown} is left as it is: it holds all suites")
    missed = [row for row in rows if row.verdict == "MISSED"]
    print(f"\n{len(rows)} numbers, {len(missed)} bars missed; written to {arguments.out}")


if __name__ == "__main__":
    main()
