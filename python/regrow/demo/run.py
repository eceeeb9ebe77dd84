"""The demo from beginning to end: load, sample, compare, account for memory, learn, report."""

import copy
import io
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from regrow.demo.batch import make_batch
from regrow.demo.compare import ROUNDS, compare
from regrow.demo.learn import LEARNING_RATE, Master, heldout_reward, learn, policy_dtype
from regrow.demo.ledger import measure_ledger
from regrow.demo.phases import Phases
from regrow.demo.picture import draw
from regrow.demo.report import (
    GRADIENT_LIMIT,
    comparison_report,
    learning_report,
    ledger_report,
    rollout_report,
    versions,
    write_report,
)
from regrow.demo.rollout import Sampler, choose_groups
from regrow.demo.tables import tables
from regrow.demo.task import Task
from regrow.models import NAME, smollm2
from regrow.rollout import calibrate

NUM_COMPARED = 2
MAX_NEW_TOKENS = 32
CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Scale:
    """How much the demo does; `--quick` keeps every part and shrinks it."""

    questions: int = 8
    heldout: int = 64
    rounds: int = ROUNDS
    steps: int = 30
    group: int = 8
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64)  # at which steps of a rollout are timed


FULL, QUICK = Scale(), Scale(questions=4, heldout=16, rounds=1, steps=3, group=4, batch_sizes=(1, 4, 16))


def run(*, seed, task, model, out, steps=None, group=None, quick=False):
    """Runs the demo, writes the report to `out` and its picture beside it, and returns the process's exit code.

    seed, steps, group: integers, the latter two by default the scale's; task: a reasoning-gym name; model: a
    transformers folder, or None for SmolLM2.
    """
    scale = QUICK if quick else FULL
    scale = replace(scale, steps=steps or scale.steps, group=group or scale.group)
    console = Console()
    logging.disable_progress_bar()
    with Phases(console) as phases:
        with phases.phase("load", "loading the model", 1), redirect_stderr(io.StringIO()):  # the dequantiser's own bar
            reference, tokenizer = load(model)
        torch.manual_seed(seed)
        questions = Task(task, tokenizer, seed=seed, num_heldout=scale.heldout)
        policy = copy.deepcopy(reference).to(policy_dtype())
        policy.set_attn_implementation(NAME)
        sampler = Sampler(
            policy, tokenizer, questions, calibrated(phases, policy, scale), max_new_tokens=MAX_NEW_TOKENS
        )
        samples = sampled(sampler, questions, scale)
        with phases.phase("sample", f"sampling {scale.questions} groups of {scale.group}", 1):
            first = next(samples)
        compared, questions_seen = choose_groups(chain([first], samples), NUM_COMPARED)
        batch = make_batch(compared)
        report = comparison_report(compare_updates(phases, reference, batch, scale), compared, questions_seen)
        whole = make_batch([group for group in first if group.differs] or compared)
        report["ledger"] = ledger_report(account(phases, reference, whole))
        master = Master(policy, dict(reference.named_parameters()))
        del reference
        # The first sample is still the policy's own.
        report |= learn_and_test(phases, policy, master, sampler, questions, chain([first], samples), scale)

    report["rollout"] = rollout_report(sampler.stats)
    report["settings"] = {
        "seed": seed, "task": task, "questions": scale.questions, "group": scale.group, "steps": scale.steps,
        "heldout": scale.heldout, "max_new_tokens": MAX_NEW_TOKENS, "learning_rate": LEARNING_RATE,
        "chunk_tokens": CHUNK_TOKENS, "dtype": str(policy.dtype).removeprefix("torch."),
        "ledger_sequences": len(whole.sequences),
        "model": Path(model or smollm2.FILE_NAME.removesuffix(".Q4_1.gguf")).name, "threads": torch.get_num_threads(),
    }  # fmt: skip
    report["versions"] = versions()
    report["seconds"] |= {"phases": phases.seconds, "total": sum(phases.seconds.values())}
    show(report, batch, Path(out), console)
    return verdict(report, console)


def calibrated(phases, policy, scale):
    """What a rollout's step costs here, by sequences and drafted tokens."""
    with phases.phase("calibrate", "what a step of a rollout costs", None) as advance:
        return calibrate(policy, batch_sizes=scale.batch_sizes, progress=lambda done, total: advance(of=total))


def sampled(sampler, questions, scale):
    """Yields groups sampled from the policy as it is when they are asked for."""
    while True:
        yield sampler.sample(questions.questions(scale.questions), scale.group)


def compare_updates(phases, reference, batch, scale):
    num_runs = (scale.rounds + 1) * (len(batch.sequences) + 2) + len(batch.sequences)
    with phases.phase("compare", "one update, replicated, packed and replayed", num_runs) as advance:
        return compare(
            reference, batch, CHUNK_TOKENS, rounds=scale.rounds,
            on_step=lambda label, count: advance(label=label, count=count),
        )  # fmt: skip


def account(phases, reference, batch):
    """The ledger of one update, in one pass and in chunks."""
    ledgers = {}
    with phases.phase("ledger", "memory, predicted and measured", 2) as advance:
        for way, chunk_tokens in (("packed", None), ("replayed", CHUNK_TOKENS)):
            ledgers[way] = measure_ledger(reference, batch, chunk_tokens)
            advance(label=way)
    return ledgers


def learn_and_test(phases, policy, master, sampler, questions, draws, scale):
    """The report's part on learning: held-out questions before and after `scale.steps` updates."""
    with phases.phase("heldout", f"{scale.heldout} held-out questions", 1) as advance:
        before = heldout_reward(sampler, questions)
        advance(label=f"{before:.2f}")
    with phases.phase("learn", f"{scale.steps} replayed updates", scale.steps) as advance:
        taken = learn(
            policy, master, draws, scale.steps, chunk_tokens=CHUNK_TOKENS,
            on_step=lambda step: advance(label=f"reward {step.reward:.2f}"),
        )  # fmt: skip
    with phases.phase("heldout_after", "held-out questions again", 1) as advance:
        after = heldout_reward(sampler, questions)
        advance(label=f"{after:.2f}")
    return learning_report(taken, before, after)


def show(report, batch, out, console):
    """Writes the report and its picture, and prints the tables."""
    write_report(report, out)
    picture = out.with_suffix(".png")
    draw(report, batch, picture)
    for shown in tables(report):
        console.print(shown)
    console.print(f"report: {out}, picture: {picture}")


def verdict(report, console):
    """The exit code: 1 where a gradient differs from the replicated one in fp64 by more than the limit."""
    difference = report["gradient"]["relative_l2"]
    if difference <= GRADIENT_LIMIT:
        return 0
    console.print(f"the gradients differ by {difference:.2e}, the limit is {GRADIENT_LIMIT:.0e}")  # nan is here too
    return 1


def load(folder):
    """Returns (model in fp32, tokenizer) of a local transformers folder, or of SmolLM2's package if it is None."""
    if folder is None:
        return smollm2.load()
    if not Path(folder).is_dir():
        raise smollm2.ModelUnavailableError(f"--model {folder} is not a folder: give a local transformers model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), tokenizer
