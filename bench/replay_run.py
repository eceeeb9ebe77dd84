"""Every bar of replay, printed and written as JSON and as a page.

python bench/replay_run.py [SUITE ...] [--out bench/results/replay.json] [--markdown PAGE]
"""

import replay_memory
import replay_omitted
import replay_update
from report import write_markdown
from suites import measure, parse, parser

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
    arguments = parse(parser(__doc__, SUITES, "bench/results/replay.json"), SUITES)
    rows = measure(arguments, SUITES)
    if arguments.markdown:
        write_markdown(rows, arguments.markdown, title="Replay, measured on the CPU", intro=INTRO)


if __name__ == "__main__":
    main()
