"""`calibrate`: what a step costs on this machine, by batch size and tokens to verify."""

import time
import weakref
from pathlib import Path
from statistics import median

import numpy as np
import torch

from regrow.replay.model import adapt
from regrow.rollout.cache import Cache
from regrow.rollout.costs import CostTable, UnusableCosts
from regrow.rollout.drafters import Draft
from regrow.rollout.layout import Layout
from regrow.rollout.linears import ModelForward
from regrow.rollout.memory import KeyValueBytes
from regrow.rollout.next_tokens import NextTokens
from regrow.rollout.prompts import Prompts
from regrow.rollout.sampling import Sampling
from regrow.rollout.sequences import Sequence, place
from regrow.rollout.step import Shapes

BATCH_SIZES = (1, 4, 16, 64)
TOKENS = (0, 1, 2, 4, 8, 16, 32)
CONTEXT_TOKENS = 256
MAX_ROWS = 256  # of a measured step: beyond it steps cost in proportion to their rows
REPEATS = 3

_measured = weakref.WeakKeyDictionary()  # model -> {fingerprint: CostTable}


@torch.no_grad()
def calibrate(model, *, batch_sizes=BATCH_SIZES, tokens=TOKENS, context_tokens=CONTEXT_TOKENS, path=None,
              progress=None):  # fmt: skip
    """The `CostTable` of this model on this machine, measured once: median seconds of a step.

    A step is the forward of each sequence's last token and `tokens` drafted ones behind a prompt of `context_tokens`
    that all share, then drawing and verifying. Steps of more than 256 rows are extrapolated in proportion to their rows
    from those of the same batch size. What was measured is kept for the model, and, with `path`, in a JSON file that
    another process of the same model shape, dtype, device, threads and versions reads instead of measuring. progress:
    called with (steps measured, all steps).

    Where the model's context is shorter than `context_tokens` and the drafts, so is the prompt.

    Raises ValueError for grids that `CostTable` refuses, for tokens that alone leave the context, a path in no folder,
    and as `generate` does for the model.

        costs = regrow.rollout.calibrate(model, path="costs.json")
        print(costs.table(acceptance=0.6))  # the best strategy per batch size, and its predicted gain
    """
    if path is not None and not Path(path).parent.is_dir():
        raise ValueError(f"path is {path}, in a folder that does not exist: make it first")
    adapted = adapt(model)
    context_tokens = within_context(adapted, context_tokens, max(tokens))
    fingerprint = describe(model, adapted, batch_sizes, tokens, context_tokens)
    known, key = _measured.setdefault(model, {}), tuple(sorted(fingerprint.items()))
    if key not in known:
        known[key] = load(path, fingerprint) or measure(
            adapted, batch_sizes, tokens, context_tokens, fingerprint, progress or (lambda done, total: None)
        )
    if path is not None:
        known[key].save(path)
    return known[key]


def within_context(adapted, context_tokens, most_tokens):
    context = getattr(adapted, "context_tokens", None)
    if context is None:
        return context_tokens
    if context < most_tokens + 2:
        raise ValueError(f"a step of {most_tokens} tokens leaves the model's context of {context}: give fewer tokens")
    return min(context_tokens, context - most_tokens - 1)


def load(path, fingerprint):
    """The table in the file, or None if it was measured elsewhere, or there is none."""
    try:
        return None if path is None else CostTable.load(path, fingerprint)
    except (UnusableCosts, FileNotFoundError):
        return None


def describe(model, adapted, batch_sizes, tokens, context_tokens):
    """What costs depend on."""
    weight = adapted.replay_head().weight
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    device = torch.cuda.get_device_name(weight.device) if weight.is_cuda else torch.backends.cpu.get_cpu_capability()
    return {
        "model": f"{type(model).__name__} of {sum(map(np.prod, shapes)):,} parameters in {len(shapes)} tensors",
        "dtype": str(weight.dtype),
        "device": f"{weight.device.type} {device}",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "grid": f"{list(batch_sizes)} x {list(tokens)} behind {context_tokens}",
    }


def measure(adapted, batch_sizes, tokens, context_tokens, fingerprint, progress):
    cells = [
        (batch, count) for batch in batch_sizes for count in tokens if batch * (1 + count) <= MAX_ROWS or not count
    ]
    steps = {batch: Rehearsal(adapted, batch, max(tokens), context_tokens) for batch in batch_sizes}
    times, total = {cell: [] for cell in cells}, len(cells) * (1 + REPEATS)
    for repeat in range(1 + REPEATS):  # the first to warm up; rounds, so that a slow minute touches all alike
        for index, (batch, count) in enumerate(cells):
            seconds = steps[batch].run(count)
            if repeat:
                times[batch, count].append(seconds)
            progress(repeat * len(cells) + index + 1, total)
    seconds = [row_of({count: median(times[batch, count]) for count in tokens if (batch, count) in times}, tokens)
               for batch in batch_sizes]  # fmt: skip
    return CostTable(batch_sizes, tokens, seconds, context_tokens, fingerprint)


def row_of(measured, tokens):
    """Seconds for all of `tokens`; beyond what is measured in proportion to the rows."""
    last = max(measured)
    return [measured.get(count, measured[last] * (1 + count) / (1 + last)) for count in tokens]


class Rehearsal:
    """A batch of sequences that have their first token, behind a prompt of random ones."""

    def __init__(self, adapted, batch, most_tokens, context_tokens):
        weight = adapted.replay_head().weight
        self.device, vocabulary = weight.device, weight.size(0)
        generator = torch.Generator().manual_seed(0)
        prompt = torch.randint(vocabulary, (context_tokens,), generator=generator).tolist()
        prompts = Prompts([prompt], batch)
        self.tokens = torch.randint(vocabulary, (most_tokens,), generator=generator).tolist()
        shapes = Shapes(prompt[0], self.device)
        model = ModelForward(adapted)
        model(shapes)
        windows = KeyValueBytes.of(shapes, context_tokens + 1 + most_tokens).windows
        layout = Layout(prompts, 1 + most_tokens, batch)
        self.cache = Cache(model, prompts, layout, windows, keep_hidden=False, device=self.device)
        self.cache.admit(0)
        self.cache.fill([0])
        self.sequences = [Sequence(number, 0, prompt, tokens=prompt[:1]) for number in range(batch)]
        for sequence in self.sequences:
            self.cache.start(sequence)
        self.next_tokens = NextTokens(adapted.replay_head(), Sampling(), seed=0)

    def run(self, count):
        """Seconds of a step that verifies so many tokens for each sequence."""
        drafts = [Draft.chain(self.tokens[:count])] * len(self.sequences)
        self.synchronize()
        began = time.perf_counter()
        step = place(self.sequences, drafts)
        hidden = self.cache.forward(step.places, step.tokens)
        self.next_tokens(hidden, drafts, [s.number for s in self.sequences], [1] * len(self.sequences))
        self.synchronize()
        return time.perf_counter() - began

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
