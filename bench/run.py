"""`make bench`: every bar of the project, measured in one process, printed and written as JSON.

python bench/run.py [attention gather cost tree] [--rounds 5] [--out bench/results/bars.json] [--markdown PAGE]
"""

import attention_bars
import cost_bars
import gather_bars
import tree_bars
from report import write_markdown
from suites import measure, parse, parser

SUITES = {"attention": attention_bars.run, "gather": gather_bars.run, "cost": cost_bars.run, "tree": tree_bars.run}


def main():
    command_line = parser(__doc__, SUITES, "bench/results/bars.json")
    command_line.add_argument("--rounds", type=int, default=5, help="interleaved rounds per workload")
    arguments = parse(command_line, SUITES)
    rows = measure(arguments, SUITES, arguments.rounds)
    if arguments.markdown and set(arguments.suites) == set(SUITES):
        write_markdown(rows, arguments.markdown)
    elif arguments.markdown:
        print(f"\n{arguments.markdown} is left as it is: it holds all suites")
    missed = [row for row in rows if row.verdict == "MISSED"]
    print(f"\n{len(rows)} numbers, {len(missed)} bars missed; written to {arguments.out}")


if __name__ == "__main__":
    main()
