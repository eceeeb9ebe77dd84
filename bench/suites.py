"""The command line of a bench that has suites: which to run, where results go, and their run one after the other."""

import argparse
from pathlib import Path

from report import machine, print_rows, write_rows


def parser(description, suites, out):
    """An ArgumentParser for suite names and where JSON and a page go."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("suites", nargs="*", default=list(suites), metavar="suite", help=", ".join(suites))
    made.add_argument("--out", type=Path, default=Path(out))
    made.add_argument("--markdown", type=Path, help="also write a page")
    return made


def parse(made, suites):
    """The command line's arguments; an unknown suite is an error that names the others."""
    arguments = made.parse_args()
    unknown = set(arguments.suites) - set(suites)
    if unknown:
        made.error(f"no suite {', '.join(sorted(unknown))}: choose from {', '.join(suites)}")
    return arguments


def measure(arguments, suites, *options):
    """The rows of the chosen suites, printed as they come, and written after each: a long run may end early."""
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    rows = []
    for suite in arguments.suites:
        measured = suites[suite](*options)
        print_rows(measured)
        rows += measured
        write_rows(rows, arguments.out)
    return rows
