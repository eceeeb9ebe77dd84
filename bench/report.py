"""Rows of a benchmark report: printed as a table, kept as JSON."""

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass
class Row:
    """One measured number. `bar` and `aim`: what `value` should reach, None where nothing is asked.

    `lower`: smaller is better.
    """

    workload: str
    measure: str
    value: float
    unit: str
    bar: float | None = None
    aim: float | None = None
    note: str = ""
    lower: bool = False
    tie: bool = False  # a difference below the spread: printed as "="

    @property
    def text(self):
        return "=" if self.tie else f"{self.value:.4g} {self.unit}".strip()

    @property
    def verdict(self):
        def reached(goal):
            if self.tie and goal == 1:  # a ratio that cannot be told from 1
                return True
            return self.value <= goal if self.lower else self.value >= goal

        if self.aim is not None and reached(self.aim):
            return "aim"
        if self.bar is not None:
            return "bar" if reached(self.bar) else "MISSED"
        return ""


def _processor():
    """The model's name where Linux tells it, else the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine():
    """What the numbers were measured on."""
    return {
        "processor": _processor(),
        "instruction_set": torch.ops.regrow.cpu_isa(""),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def print_rows(rows):
    """A table with a blank line between workloads."""
    workload = None
    for row in rows:
        if row.workload != workload:
            workload = row.workload
            print(f"\n{workload}")
        goals = ", ".join(f"{name} {goal:g}" for name, goal in (("bar", row.bar), ("aim", row.aim)) if goal is not None)
        print(f"  {row.measure:<38}{row.text:>22} {row.verdict:<7} {goals:<20} {row.note}")


def write_rows(rows, path, facts=None, **more):
    """JSON: the machine, every row with its verdict, and what else is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [asdict(row) | {"verdict": row.verdict} for row in rows]
    path.write_text(json.dumps({"machine": facts or machine(), **more, "rows": results}, indent=1) + "\n")


CPU_INTRO = [
    "Written by `make bench`; a workload's implementations run in turn in one process, and medians are shown.",
    "Verdicts: *aim* and *bar* say what was reached, MISSED what was not. `=`: a difference below the spread.",
]


def write_markdown(rows, path, title="Measured on the CPU", intro=CPU_INTRO, facts=None, more=()):
    """The same as a page: one table per workload, then the lines of `more`."""
    lines = [f"# {title}", "", *intro, ""]
    lines.append(", ".join(f"{name} {value}" for name, value in (facts or machine()).items()))
    workload = None
    for row in rows:
        if row.workload != workload:
            workload = row.workload
            lines += ["", f"## {workload}", "", "| measure | value | bar | aim | verdict | |", "|" + " --- |" * 6]
        goals = ["" if goal is None else f"{goal:g}" for goal in (row.bar, row.aim)]
        cells = [row.measure, row.text, *goals, row.verdict, row.note]
        lines.append(f"| {' | '.join(cells)} |")
    path.write_text("\n".join([*lines, *more]) + "\n")
