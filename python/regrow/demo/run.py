"""The demo from beginning to end: load, sample, compare, report."""

import io
import time
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import regrow.models  # noqa: F401  registers the attention implementation
from regrow.demo.compare import ROUNDS, compare
from regrow.demo.objective import make_batch
from regrow.demo.report import GRADIENT_LIMIT, build_report, table, write_report
from regrow.demo.rollout import draw_groups
from regrow.demo.task import Task
from regrow.models import smollm2

NUM_QUESTIONS = 2
MAX_NEW_TOKENS = 32


def run(*, seed, task, group, model, out):
    """Runs the demo, writes the report to `out`, and returns the process's exit code.

    seed, group: integers; task: a reasoning-gym name; model: a transformers folder, or None for SmolLM2.
    """
    console = Console()
    logging.disable_progress_bar()
    phases = {}
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        with phase(progress, phases, "load", "loading the model", 1) as step:
            with redirect_stderr(io.StringIO()):  # a bar of the dequantiser's own, which would tear this one
                policy, tokenizer = load(model)
            step()

        torch.manual_seed(seed)
        prompts = Task(task, tokenizer, seed=seed)
        with phase(progress, phases, "sample", f"sampling {NUM_QUESTIONS} groups of {group}", NUM_QUESTIONS) as step:
            groups, questions_drawn = draw_groups(
                policy,
                tokenizer,
                prompts,
                num_groups=NUM_QUESTIONS,
                group_size=group,
                max_new_tokens=MAX_NEW_TOKENS,
                on_draw=lambda kept: step(completed=kept),
            )

        batch = make_batch(groups)
        num_steps = ROUNDS * (len(batch.sequences) + 1)
        with phase(progress, phases, "compare", "replicated and packed, in turn", num_steps) as step:
            comparison = compare(policy, batch, on_step=lambda label, count: step(label=label, count=count))

    settings = {"seed": seed, "task": task, "group": group, "model": model or smollm2.FILE_NAME}
    settings["threads"] = torch.get_num_threads()
    report = build_report(groups, questions_drawn, comparison, settings, phases)
    write_report(report, Path(out))
    console.print(table(report))
    console.print(f"{questions_drawn} questions drawn for {NUM_QUESTIONS} whose rewards differ; report: {out}")

    if not report["gradient"]["relative_l2"] <= GRADIENT_LIMIT:  # nan fails too
        console.print(f"the gradients differ by {comparison.relative_l2:.2e}, the limit is {GRADIENT_LIMIT:.0e}")
        return 1
    return 0


def load(folder):
    """Returns (model, tokenizer) in fp32 from a local folder, or SmolLM2 from its package."""
    if folder is None:
        return smollm2.load()
    if not Path(folder).is_dir():
        raise smollm2.ModelUnavailableError(f"--model {folder} is not a folder: give a local transformers model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), tokenizer


@contextmanager
def phase(progress, phases, name, description, total):
    """A progress bar for one phase, whose seconds go to `phases[name]`; yields a function that advances it."""
    bar = progress.add_task(description, total=total)
    started = time.perf_counter()

    def step(*, count=1, completed=None, label=None):
        if label is not None:
            progress.update(bar, description=f"{description}: {label}")
        progress.update(bar, completed=completed, advance=count if completed is None else None)

    yield step
    phases[name] = time.perf_counter() - started
    progress.update(bar, description=description, completed=total)
