"""Progress bars of the demo's phases, and the seconds that each took."""

import time
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Phases(Progress):
    """`seconds`: by name of the phases that are over."""

    def __init__(self, console):
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        super().__init__(*columns, TimeElapsedColumn(), console=console)
        self.seconds = {}

    @contextmanager
    def phase(self, name, description, total):
        """A bar for one phase; yields `advance(*, count=1, label=None, of=None)`: of is the total, if known later."""
        bar = self.add_task(description, total=total)
        started = time.perf_counter()

        def advance(*, count=1, label=None, of=None):
            nonlocal total
            if of is not None:
                total = of
                self.update(bar, total=of)
            if label is not None:
                self.update(bar, description=f"{description}: {label}")
            self.update(bar, advance=count)

        yield advance
        self.seconds[name] = time.perf_counter() - started
        self.update(bar, completed=total)
