"""Every bar of rollouts, printed and written as JSON and as a page.

python bench/rollout_run.py [SUITE ...] [--dtype bfloat16] [--out bench/results/rollout.json] [--markdown PAGE]
"""

import rollout_bars
from report import write_markdown
from suites import measure, parse, parser

SUITES = {
    "costs": rollout_bars.costs,
    "batch": rollout_bars.batch,
    "single": rollout_bars.single,
    "suffix": rollout_bars.suffix,
    "choice": rollout_bars.choice,
    "linears": rollout_bars.linears,
}
INTRO = ["Written by `python bench/rollout_run.py`; [rollout.md](rollout.md) says what is measured and why."]


def main():
    made = parser(__doc__, SUITES, "bench/results/rollout.json")
    made.add_argument("--dtype", help="by default bfloat16, or float32 where the processor has no bf16 products")
    arguments = parse(made, SUITES)
    rows = measure(arguments, SUITES, rollout_bars.dtype_of(arguments.dtype))
    if arguments.markdown:
        write_markdown(rows, arguments.markdown, title="Rollouts, measured on the CPU", intro=INTRO)


if __name__ == "__main__":
    main()
