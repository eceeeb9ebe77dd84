"""The demo from beginning to end: load, sample, compare, account for memory, learn, report."""

import copy
import io
import time
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from regrow.demo.batch import make_batch
from regrow.demo.compare import ROUNDS, compare
from regrow.demo.learn import LEARNING_RATE, Master, heldout_reward, learn, policy_dtype
from regrow.demo.ledger import measure_ledger
from regrow.demo.picture import draw
from regrow.demo.report import (
    GRADIENT_LIMIT,
    comparison_report,
    learning_report,
    ledger_report,
    versions,
    write_report,
)
from regrow.demo.rollout import choose_groups, sample_groups
from regrow.demo.tables import tables
from regrow.demo.task import Task
from regrow.models import NAME, smollm2

NUM_COMPARED = 2
MAX_NEW_TOKENS = 32
CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Scale:
    """How much the demo does; `--quick` keeps every part and shrinks it."""

    questions: int = 8
    heldout: int = 64
    rounds: int = ROUNDS
    steps: int = 40
    group: int = 8


FULL, QUICK = Scale(), Scale(questions=4, heldout=16, rounds=1, steps=3, group=4)


def run(*, seed, task, model, out, steps=None, group=None, quick=False):
    """Runs the demo, writes the report to `out` and its picture beside it, and returns the process's exit code.

    seed, steps, group: integers, the latter two by default the scale's; task: a reasoning-gym name; model: a
    transformers folder, or None for SmolLM2.
    """
    scale = QUICK if quick else FULL
    steps, group = steps or scale.steps, group or scale.group
    console, phases = Console(), {}
    logging.disable_progress_bar()
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        with phase(progress, phases, "load", "loading the model", 1) as advance:
            with redirect_stderr(io.StringIO()):  # a bar of the dequantiser's own, which would tear this one
                reference, tokenizer = load(model)
            advance()
        torch.manual_seed(seed)
        questions = Task(task, tokenizer, seed=seed, num_heldout=scale.heldout)
        policy = copy.deepcopy(reference).to(policy_dtype())
        policy.set_attn_implementation(NAME)

        def sample():
            entries = questions.questions(scale.questions)
            return sample_groups(policy, tokenizer, questions, entries, group_size=group, max_new_tokens=MAX_NEW_TOKENS)

        with phase(progress, phases, "sample", f"sampling {scale.questions} groups of {group}", 1) as advance:
            first = sample()
            advance()

        compared, questions_seen = choose_groups(chain([first], iter(sample, None)), NUM_COMPARED)
        batch = make_batch(compared)
        num_runs = (scale.rounds + 1) * (len(batch.sequences) + 2)
        with phase(progress, phases, "compare", "one update, replicated, packed and replayed", num_runs) as advance:
            comparison = compare(
                reference, batch, CHUNK_TOKENS, rounds=scale.rounds,
                on_step=lambda label, count: advance(label=label, count=count),
            )  # fmt: skip
        report = comparison_report(comparison, compared, questions_seen)
        del comparison

        whole = make_batch([group for group in first if group.differs] or compared)
        with phase(progress, phases, "ledger", "memory, predicted and measured", 2) as advance:
            ledgers = {}
            for way, chunk_tokens in (("packed", None), ("replayed", CHUNK_TOKENS)):
                ledgers[way] = measure_ledger(reference, whole, chunk_tokens)
                advance(label=way)
        report["ledger"] = ledger_report(ledgers)

        with phase(progress, phases, "heldout", f"{scale.heldout} held-out questions", 2) as advance:
            before = heldout_reward(policy, tokenizer, questions, MAX_NEW_TOKENS)
            advance(label=f"{before:.2f}")
        master = Master(policy, dict(reference.named_parameters()))
        del reference
        draws = chain([first], iter(sample, None))  # the first sample is still the policy's own
        with phase(progress, phases, "learn", f"{steps} replayed updates", steps) as advance:
            taken = learn(
                policy, master, draws, steps, chunk_tokens=CHUNK_TOKENS,
                on_step=lambda step: advance(label=f"reward {step.reward:.2f}"),
            )  # fmt: skip
        with phase(progress, phases, "heldout_after", "held-out questions again", 1) as advance:
            after = heldout_reward(policy, tokenizer, questions, MAX_NEW_TOKENS)
            advance(label=f"{after:.2f}")

    report |= learning_report(taken, before, after)
    report["settings"] = {
        "seed": seed, "task": task, "questions": scale.questions, "group": group, "steps": steps,
        "heldout": scale.heldout, "max_new_tokens": MAX_NEW_TOKENS, "learning_rate": LEARNING_RATE,
        "chunk_tokens": CHUNK_TOKENS, "dtype": str(policy.dtype).removeprefix("torch."),
        "ledger_sequences": len(whole.sequences),
        "model": Path(model or smollm2.FILE_NAME.removesuffix(".Q4_1.gguf")).name, "threads": torch.get_num_threads(),
    }  # fmt: skip
    report["versions"] = versions()
    report["seconds"]["phases"] = phases
    report["seconds"]["total"] = sum(phases.values())
    out = Path(out)
    write_report(report, out)
    picture = out.with_suffix(".png")
    draw(report, batch, picture)
    for shown in tables(report):
        console.print(shown)
    console.print(f"report: {out}, picture: {picture}")

    difference = report["gradient"]["relative_l2"]
    if not difference <= GRADIENT_LIMIT:  # nan fails too
        console.print(f"the gradients differ by {difference:.2e}, the limit is {GRADIENT_LIMIT:.0e}")
        return 1
    return 0


def load(folder):
    """Returns (model in fp32, tokenizer) of a local transformers folder, or of SmolLM2's package if it is None."""
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

    def advance(*, count=1, label=None):
        if label is not None:
            progress.update(bar, description=f"{description}: {label}")
        progress.update(bar, advance=count)

    yield advance
    phases[name] = time.perf_counter() - started
    progress.update(bar, completed=total)
