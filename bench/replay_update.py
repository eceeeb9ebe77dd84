"""One update of SmolLM2, prompt 4,096 and 8 x 128: time and gradients of replay and of the replicated batch."""

import time
from dataclasses import dataclass

import torch
from bf16_products import products
from replay_cases import load_smollm2, question_case
from report import Row

import regrow
import regrow.models as models
from regrow import replay

CHUNK_TOKENS = 4096
LONGSTRAW_COSINE, LONGSTRAW_RELATIVE = 0.999, 0.01


@dataclass
class Update:
    """seconds: by the wall, and of the processor, which other work on the machine does not lengthen."""

    seconds: float
    processor_seconds: float
    gradients: dict
    result: object = None


def run():
    model, tokenizer = load_smollm2()
    case = question_case(tokenizer)
    updates = {"replicated": replicated(model, case), "exact": replayed(model, case, "exact")}
    updates["detached"] = replayed(model, case, "detached")
    return [*time_rows(updates), *share_rows(updates), *distance_rows(updates)]


def accuracy():
    """bf16 against fp32: replay, and plain autograd through one pass over the whole tree."""
    model, tokenizer = load_smollm2()
    case = question_case(tokenizer)
    reference = replayed(model, case, "exact").gradients
    model = model.bfloat16()
    context, kind = products()
    with context:
        ours = distance(replayed(model, case, "exact").gradients, reference)
        plain = distance(packed(model, case).gradients, reference)
    workload = f"bf16 gradient to fp32, prompt 4,096 + 8 x 128 (bf16 products {kind})"
    gates = dict(note="LongStraw's own gate")
    return [
        Row(workload, "plain autograd, relative L2", plain[0], "", bar=LONGSTRAW_RELATIVE, lower=True, **gates),
        Row(workload, "replayed, relative L2", ours[0], "", bar=LONGSTRAW_RELATIVE, lower=True, **gates),
        Row(workload, "replayed / plain", ours[0] / plain[0], "x", bar=1.2, lower=True),
        Row(workload, "plain autograd, cosine", plain[1], "", bar=LONGSTRAW_COSINE, **gates),
        Row(workload, "replayed, cosine", ours[1], "", bar=LONGSTRAW_COSINE, **gates),
    ]


def replicated(model, case):
    """Every sequence whole under SDPA with gradient checkpointing, one after the other; the loss in plain torch."""
    model.set_attn_implementation("sdpa")
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    began = now()
    for sequence, advantage in zip(case.sequences, case.advantages, strict=True):
        response = sequence[case.prompt_tokens :]
        logits = model(sequence[None], use_cache=False, logits_to_keep=len(response) + 1).logits[0, :-1]
        # In fp32 the gradient of a likely token, 1 - p, would lose the digits that are compared.
        logp = torch.log_softmax(logits, -1, dtype=torch.float64).gather(-1, response[:, None])
        (-(logp - logp.detach()).exp().sum() * advantage / case.num_response_tokens).backward()
    seconds = elapsed(began)
    model.gradient_checkpointing_disable()
    model.eval()
    model.set_attn_implementation("regrow")
    return Update(*seconds, take_gradients(model))


def replayed(model, case, prefix_grad):
    tree, objective = case.tree, case.objective
    began = now()
    result = replay.backward(model, tree, objective, chunk_tokens=CHUNK_TOKENS, prefix_grad=prefix_grad)
    return Update(*elapsed(began), take_gradients(model), result)


def packed(model, case):
    """One pass over the whole tree under plain autograd."""
    tree, objective = case.tree, case.objective
    began = now()
    hidden = models.packed(model.model, tree).last_hidden_state[0]
    logp = regrow.tree_logprobs(hidden, model.lm_head.weight, tree, where=objective.where(tree))
    objective(logp, tree, None).backward()
    return Update(*elapsed(began), take_gradients(model))


def now():
    return time.perf_counter(), time.process_time()


def elapsed(began):
    return [end - begin for begin, end in zip(began, now(), strict=True)]


def take_gradients(model):
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return gradients


def time_rows(updates):
    workload = f"one exact update, SmolLM2 fp32, prompt 4,096 + 8 x 128, chunks of {CHUNK_TOKENS:,}"
    replicated, exact = updates["replicated"], updates["exact"]
    return [
        Row(workload, "replicated, checkpointed", replicated.seconds, "s", note=processor(replicated)),
        Row(workload, "replayed", exact.seconds, "s", note=processor(exact)),
        Row(workload, "replicated / replayed", replicated.seconds / exact.seconds, "x", bar=5),
        Row(workload, "the same, processor time", replicated.processor_seconds / exact.processor_seconds, "x", bar=5),
    ]


def processor(update):
    return f"{update.processor_seconds:.1f} s of the processor"


def share_rows(updates):
    """Exact over detached: inner segments run forward once more, and forward and backward what detached runs once."""
    exact, detached = updates["exact"], updates["detached"]
    forward, both = (
        (stats.forward_tokens, stats.differentiated_tokens) for stats in (exact.result.stats, detached.result.stats)
    )
    predicted = (forward[0] + 3 * forward[1]) / (both[0] + 3 * both[1])
    workload = "exact over detached, fp32"
    return [
        Row(workload, "predicted from tokens, backward = 2 forward", predicted, "x"),
        Row(workload, "measured", exact.seconds / detached.seconds, "x"),
        Row(workload, "measured, processor time", exact.processor_seconds / detached.processor_seconds, "x"),
    ]


def distance_rows(updates):
    reference, ours = updates["replicated"].gradients, updates["exact"].gradients
    worst = max(reference, key=lambda name: distance(ours, reference, [name])[0])
    workload = "gradient against the replicated batch, fp32"
    return [
        Row(workload, "all parameters, relative L2", distance(ours, reference)[0], "", bar=1e-5, lower=True),
        Row(workload, "the worst one", distance(ours, reference, [worst])[0], "", bar=1e-5, lower=True, note=worst),
    ]


def digits():
    """Where the digits of the fp32 gradients go: both updates against fp64, prompt 512 + 8 x 64."""
    model, tokenizer = load_smollm2()
    case = question_case(tokenizer, prompt_tokens=512, response_tokens=64)
    ours, theirs = replayed(model, case, "exact").gradients, replicated(model, case).gradients
    truth = packed(model.double(), case).gradients
    rows = []
    pairs = {
        "replayed to fp64": (ours, truth),
        "replicated to fp64": (theirs, truth),
        "replayed to replicated": (ours, theirs),
    }
    for name, (gradients, reference) in pairs.items():
        each = {parameter: distance(gradients, reference, [parameter])[0] for parameter in reference}
        worst = max(each, key=each.get)
        over = sum(value > 1e-5 for value in each.values())
        workload = "relative L2 of fp32 gradients, SmolLM2, prompt 512 + 8 x 64"
        rows += [
            Row(workload, name, distance(gradients, reference)[0], ""),
            Row(workload, f"{name}, worst", each[worst], "", note=f"{worst}; {over} of {len(each)} above 1e-5"),
        ]
    return rows


def distance(gradients, reference, names=None):
    """(relative L2, cosine) of all parameters, or those named, as one vector, in fp64."""
    sums = torch.zeros(4, dtype=torch.float64)
    for name in names or reference:
        a, b = gradients[name].flatten().double(), reference[name].flatten().double()
        sums += torch.stack([(a - b) @ (a - b), b @ b, a @ a, a @ b])
    difference, theirs, ours, product = sums.tolist()
    return (difference / theirs) ** 0.5, product / (theirs * ours) ** 0.5
