"""Rollouts of SmolLM2: against transformers' generate, with and without speculation, and by calibrated choice."""

import statistics
import time

import torch
from report import Row
from rollout_cases import Models, median_ratio, pairs, question_prompts, random_prompts, transformers_generate

from regrow.rollout import Calibrated, Strategy, SuffixDrafter, calibrate, generate
from regrow.skinny import skinny_linear

ROUNDS = 3
FIXED = ["none", Strategy(2), Strategy(4), Strategy(8), Strategy(4, 2, 8)]
SIZES = (1, 4, 16, 64)  # of batches
TEMPERATURES = (0.6, 1.0)  # the second is the model's own, and flat: it is small


def seconds(models, prompts, group, max_new_tokens, **options):
    began = time.perf_counter()
    generate(models.ours, prompts, group, max_new_tokens=max_new_tokens, **options)
    return time.perf_counter() - began


def batch(dtype):
    """64 sequences: 8 prompts with a shared beginning, 8 responses each."""
    models = Models.load(dtype)
    prompts = question_prompts(models.tokenizer, 8)
    theirs, ours = pairs(
        2,
        lambda seed: transformers_generate(models, prompts, 8, 64, seed),
        lambda seed: seconds(models, prompts, 8, 64, seed=seed),
    )
    shared = generate(models.ours, prompts, 1, max_new_tokens=1).stats
    padded = 64 * max(map(len, prompts))
    workload = f"8 prompts x 8, 256 tokens shared, 64 new, {models.dtype}"
    return [
        Row(workload, "transformers generate, batch 64", statistics.median(theirs), "s"),
        Row(workload, "regrow", statistics.median(ours), "s"),
        Row(workload, "times faster", median_ratio(theirs, ours), "x", bar=1.5),
        Row(workload, "prompt tokens with K/V", padded / shared.rows, "x fewer", bar=8),
    ]


def single(dtype):
    """One sequence, without speculation."""
    models = Models.load(dtype)
    prompts = question_prompts(models.tokenizer, 1)
    theirs, ours = pairs(
        2 * ROUNDS + 1,
        lambda seed: transformers_generate(models, prompts, 1, 64, seed),
        lambda seed: seconds(models, prompts, 1, 64, seed=seed),
    )
    workload = f"1 prompt of {len(prompts[0])}, 64 new, {models.dtype}"
    return [
        Row(workload, "transformers generate", statistics.median(theirs), "s"),
        Row(workload, "regrow", statistics.median(ours), "s"),
        Row(workload, "times faster", median_ratio(theirs, ours), "x", bar=1.0),
    ]


def suffix(dtype):
    """The last 4 of 32 sequences, 28 of which the drafter has seen; and text in which nothing repeats."""
    models = Models.load(dtype)
    costs = calibrate(models.ours)
    prompts = question_prompts(models.tokenizer, 4)
    rows = [row for temperature in TEMPERATURES for row in tail(models, costs, prompts, temperature)]
    theirs, ours = pairs(
        ROUNDS,
        lambda seed: seconds(models, random_prompts(models.tokenizer, 4), 1, 96, seed=seed, temperature=1.5),
        lambda seed: seconds(
            models, random_prompts(models.tokenizer, 4), 1, 96, seed=seed, temperature=1.5, drafter="suffix",
            strategy=Calibrated(costs),
        ),
    )  # fmt: skip
    workload = f"4 sequences of random text, temperature 1.5, {models.dtype}"
    return [*rows, Row(workload, "times faster than none", median_ratio(theirs, ours), "x", bar=0.95)]


def tail(models, costs, prompts, temperature):
    lengths = []

    def drafted(seed):
        drafter, selector = SuffixDrafter(), Calibrated(costs)
        options = dict(temperature=temperature, drafter=drafter, strategy=selector)
        generate(models.ours, prompts, 7, max_new_tokens=128, seed=1000 + seed, **options)
        began = time.perf_counter()
        lengths.append(
            generate(models.ours, prompts, 1, max_new_tokens=128, seed=seed, **options).stats.acceptance_length
        )
        return time.perf_counter() - began

    theirs, ours = pairs(
        ROUNDS, lambda seed: seconds(models, prompts, 1, 128, seed=seed, temperature=temperature), drafted
    )
    workload = f"the last 4 of 32 sequences, gsm_symbolic, temperature {temperature}, {models.dtype}"
    return [
        Row(workload, "acceptance length", statistics.median(lengths), "tokens"),
        Row(workload, "times faster than none", median_ratio(theirs, ours), "x", bar=1.2),
    ]


def choice(dtype):
    """Tokens a second of the calibrated choice over those of the best fixed strategy, while the batch is full.

    Each run's drafter begins anew; the selector has seen one rollout before, as in the second step of training.
    """
    models = Models.load(dtype)
    costs = calibrate(models.ours)
    prompts, rows = question_prompts(models.tokenizer, 4), []
    for batch_size in SIZES:
        num_prompts, selector = min(batch_size, 4), Calibrated(costs)

        def run(seed, strategy, batch_size=batch_size, num_prompts=num_prompts, selector=selector):
            stats = generate(
                models.ours, prompts[:num_prompts], batch_size // num_prompts, max_new_tokens=64, seed=seed,
                temperature=TEMPERATURES[0], drafter="suffix", strategy=strategy or selector,
            ).stats  # fmt: skip
            full = [step for step in stats.trace if step.live == batch_size]
            tokens = sum(step.live + step.accepted for step in full)
            return sum(step.draft_seconds + step.step_seconds for step in full) / tokens

        arms = [None, *FIXED]
        run(1000, None)
        rounds = 2 * ROUNDS + 1 if batch_size < 16 else 2  # short ones scatter, long ones take minutes
        measured = pairs(rounds, *[lambda seed, arm=arm: run(seed, arm) for arm in arms])
        medians = [statistics.median(column) for column in measured]
        best = min(range(1, len(arms)), key=medians.__getitem__)
        workload = f"batch {batch_size}, 64 new tokens, temperature {TEMPERATURES[0]}, {models.dtype}"
        rows += [
            Row(workload, f"fixed: {arm}", none_over(medians, index), "x of none")
            for index, arm in enumerate(arms)
            if index
        ]
        rows.append(Row(workload, "calibrated", none_over(medians, 0), "x of none"))
        note = f"the best: {arms[best]}"
        rows.append(
            Row(
                workload, "calibrated / best fixed", median_ratio(measured[best], measured[0]), "x", bar=0.97, note=note
            )
        )
    return rows


def none_over(medians, index):
    """medians[1] is that of no speculation."""
    return medians[1] / medians[index]


def costs(dtype):
    """The table that chooses, and what it says."""
    models = Models.load(dtype)
    table = calibrate(models.ours)
    rows = [
        Row(f"a step of {size} sequences, {models.dtype}", f"{tokens} drafted for each", 1e3 * value, "ms")
        for size, values in zip(table.batch_sizes, table.seconds, strict=True)
        for tokens, value in zip(table.tokens, values, strict=True)
        if size * (1 + tokens) <= 256
    ]
    rows += floors(models, table)
    for acceptance in (0.5, 0.7, 0.9):
        rows += [
            Row(f"predicted best at acceptance {acceptance}", f"batch {size}", gain, "x of none", note=str(strategy))
            for size, strategy, gain in table.table(acceptance)
        ]
    return rows


def linears(dtype):
    """All linear layers of the model for few rows, one after the other, against torch's and reading the weights."""
    models = Models.load(dtype)
    weights = [module.weight for module in models.ours.modules() if type(module) is torch.nn.Linear]
    num_bytes, rows = sum(weight.nbytes for weight in weights), []
    for count in (1, 2, 3, 5, 8, 16, 24, 32):
        inputs = {w.size(1): torch.randn(count, w.size(1), dtype=w.dtype) for w in weights}
        products = {
            "read": lambda w: w.view(torch.float32).sum(),
            "torch": lambda w, inputs=inputs: torch.nn.functional.linear(inputs[w.size(1)], w),
            "regrow": lambda w, inputs=inputs: skinny_linear(inputs[w.size(1)], w),
        }
        read, theirs, ours = pairs(
            9, *[lambda seed, product=product: over_all(product, weights) for product in products.values()]
        )
        workload = f"{count} rows, {len(weights)} layers, {num_bytes / 1e6:.0f} MB, {models.dtype}"
        rows += [
            Row(workload, "torch", 1e3 * statistics.median(theirs), "ms"),
            Row(workload, "regrow", 1e3 * statistics.median(ours), "ms"),
            Row(workload, "floor: weights read once", 1e3 * statistics.median(read), "ms"),
            Row(workload, "times faster", median_ratio(theirs, ours), "x"),
        ]
    return rows


@torch.no_grad()
def over_all(product, weights):
    began = time.perf_counter()
    for weight in weights:
        product(weight)
    return time.perf_counter() - began


def floors(models, table):
    """A step without drafts against the time to read all weights once, and that of its multiplications."""
    num_weights = sum(parameter.numel() for parameter in models.ours.parameters())  # the head's are the embedding's
    weight = models.ours.lm_head.weight
    bits = weight.detach().view(torch.float32)  # whose sum is as fast as memory is, whatever the dtype
    read = median_seconds(bits.sum) / weight.numel() * num_weights
    square = torch.randn(1024, 1024, dtype=weight.dtype)
    out = torch.empty_like(square)
    multiply = median_seconds(lambda: torch.mm(square, square, out=out)) / 1024**3 * num_weights
    rows = []
    for size, (step, *_) in zip(table.batch_sizes, table.seconds, strict=True):
        workload, floor = f"a step of {size} sequences, {models.dtype}", max(read, size * multiply)
        rows.append(Row(workload, "floor: weights read once, or multiplied", 1e3 * floor, "ms"))
        rows.append(Row(workload, "over its floor", step / floor, "x"))
    return rows


@torch.no_grad()
def median_seconds(run):
    rounds = []
    for _ in range(9):
        began = time.perf_counter()
        run()
        rounds.append(time.perf_counter() - began)
    return statistics.median(rounds)


def dtype_of(name):
    return None if name is None else getattr(torch, name)
