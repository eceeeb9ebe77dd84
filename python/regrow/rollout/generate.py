"""`generate`: many responses to each prompt, sampled together on one tree."""

from dataclasses import replace

import torch

from regrow.replay.model import adapt
from regrow.rollout.cache import Cache
from regrow.rollout.calibrate import calibrate
from regrow.rollout.engine import Engine
from regrow.rollout.inputs import check_model, make_drafter, seed_bits, stop_runs, token_lists, whole
from regrow.rollout.memory import KeyValueBytes, available_bytes, fit
from regrow.rollout.next_tokens import NextTokens
from regrow.rollout.prompts import Prompts
from regrow.rollout.result import Rollout, Stats
from regrow.rollout.sampling import Sampling
from regrow.rollout.selector import Calibrated, Fixed, Selector
from regrow.rollout.sequences import Stop
from regrow.rollout.step import Shapes
from regrow.rollout.strategy import NONE


@torch.no_grad()
def generate(
    model, prompts, group=1, *, drafter=None, strategy=None, temperature=1.0, top_p=1.0, top_k=None, max_new_tokens,
    stop=None, seed=None, return_hidden=False, on_event=None, max_batch=None, budget_bytes=None,
):  # fmt: skip
    """Samples `group` responses to each prompt. Shared beginnings of prompts are computed once.

    model: a causal LM that `regrow.models.attach` has switched, or a `regrow.replay.Replayable`. prompts: lists, arrays
    or tensors of token ids. temperature (0: greedy), top_p, top_k: as `Sampling`. stop: None, `max_new_tokens` alone
    ends a response; "eos", the model's own end tokens do too; or a list of token ids and of lists of them, behind the
    first of which a response ends, it included. seed: of 64 bits; None draws one from torch's generator. A sequence's
    tokens depend on the seed, its number and its positions alone: not on the batch, nor on drafts without
    distributions, but for rounding.

    drafter: "suffix", a `Drafter`, or None. strategy: a `Strategy`, "none", or a `Selector`; None takes by measured
    costs (`calibrate`) what pays, which may be nothing. Either way the distribution is exactly the model's own.

    max_batch: how many sequences run at once, None for all; others wait for their slots. budget_bytes: for keys and
    values, by default what is free. on_event: called with each event of `regrow.rollout.events`. return_hidden: keeps
    hidden states for training a draft model.

    Returns a `Rollout`. A KeyboardInterrupt ends it early, and what is finished is returned. Raises ValueError for bad
    input, with the value and the remedy, before anything is computed; and for a batch that would not fit, with the
    largest that does.

        model = regrow.models.attach(model)
        rollout = regrow.rollout.generate(model, prompts, group=8, max_new_tokens=256, stop="eos", drafter="suffix")
        tree, old = rollout.tree, rollout.on_axis(rollout.logprobs)
    """
    sampling = Sampling(temperature, top_p, top_k)
    group, max_new_tokens = whole("group", group), whole("max_new_tokens", max_new_tokens)
    adapted = adapt(model)
    weight = adapted.replay_head().weight
    device, vocabulary = weight.device, weight.size(0)
    prompts = Prompts(token_lists(prompts, vocabulary), group)
    check_model(model, adapted, prompts, max_new_tokens)
    ends = Stop(stop_runs(stop, model, vocabulary), max_new_tokens)
    seed = seed_bits(seed)
    drafter = make_drafter(drafter, vocabulary)
    max_live = prompts.num_sequences
    max_live = max_live if max_batch is None else min(max_live, whole("max_batch", max_batch))

    shapes = Shapes(prompts.unique[0][0], device)
    adapted.replay_hidden(shapes)  # which also finds out about the head
    bytes_per_token = KeyValueBytes.of(shapes, prompts.longest + max_new_tokens)
    budget_bytes = available_bytes(device) if budget_bytes is None else budget_bytes
    layout, predicted = fit(prompts, max_new_tokens, max_live, bytes_per_token, budget_bytes)
    selector = make_selector(strategy, drafter, model)
    if on_event is None:  # not `or`: a callable may be an empty list
        on_event = ignore

    keeps_prompts = return_hidden or (drafter is not None and drafter.wants_hidden)
    cache = Cache(adapted, prompts, layout, bytes_per_token.windows, keep_hidden=keeps_prompts, device=device)
    engine = Engine(
        cache, NextTokens(adapted.replay_head(), sampling, seed), ends, max_live=max_live, drafter=drafter,
        selector=selector, on_event=on_event, keep_hidden=return_hidden,
    )  # fmt: skip
    interrupted = False
    try:
        engine.run()
    except KeyboardInterrupt:
        interrupted = True
    return gather(engine, predicted, interrupted)


def ignore(event):
    """For rollouts that nobody watches."""


def make_selector(strategy, drafter, model):
    """What decides how much to draft; None without a drafter."""
    if drafter is None:
        if strategy not in (None, "none", NONE):
            raise ValueError(f"strategy is {strategy}, and nothing drafts: give a drafter, 'suffix' for one")
        return None
    if isinstance(strategy, Selector):
        return strategy
    return Calibrated(calibrate(model)) if strategy is None else Fixed(strategy)


def gather(engine, predicted_bytes, interrupted):
    """The `Rollout` of what is finished."""
    finished = sorted(engine.finished, key=lambda sequence: sequence.number)
    dtype = torch.float64 if engine.next_tokens.head.weight.dtype == torch.float64 else torch.float32
    rollout = Rollout(
        sequences=[torch.tensor(s.prompt_tokens + s.tokens) for s in finished],
        prompt_lengths=[len(s.prompt_tokens) for s in finished],
        logprobs=[torch.tensor(s.logprobs, dtype=dtype) for s in finished],
        sampling_logprobs=[torch.tensor(s.sampling_logprobs, dtype=dtype) for s in finished],
        reasons=[s.reason for s in finished],
        numbers=[s.number for s in finished],
        interrupted=interrupted,
        stats=stats(engine, predicted_bytes),
    )
    return replace(rollout, hidden=hidden_on_axis(engine, rollout, finished)) if engine.keep_hidden else rollout


def stats(engine, predicted_bytes):
    trace = [
        (step.num_live, sum(map(len, step.drafts)), sum(map(len, step.paths)), step.draft_seconds, step.step_seconds)
        for step in engine.trace
    ]
    return Stats(
        seconds=engine.now,
        prefill_seconds=engine.prefill_seconds,
        tokens=sum(len(sequence.tokens) for sequence in [*engine.finished, *engine.live]),
        rows=engine.cache.num_rows,
        steps=len(trace),
        drafted=sum(drafted for _, drafted, *_ in trace),
        accepted=sum(accepted for _, _, accepted, *_ in trace),
        predicted_kv_bytes=predicted_bytes,
        kv_bytes=engine.cache.peak_bytes,
        trace=trace,
    )


def hidden_on_axis(engine, rollout, finished):
    """[T,H]: beside each token the state from which it was drawn, 0 at roots."""
    if not finished:
        return None
    hidden = finished[0].hidden[0].new_zeros(rollout.tree.num_tokens, finished[0].hidden[0].size(-1))
    done = set()
    for sequence, path in zip(finished, rollout.paths(), strict=True):
        length = len(sequence.prompt_tokens)
        if sequence.prompt not in done:
            hidden[path[1:length]] = engine.cache.prompt_hidden(sequence.prompt)[:-1]
            done.add(sequence.prompt)
        hidden[path[length:]] = torch.cat(sequence.hidden)
    return hidden
