"""`generate`: many responses to each prompt, sampled together on one tree."""

from dataclasses import replace

import torch

from regrow.replay.model import adapt
from regrow.rollout.cache import Cache
from regrow.rollout.calibration import calibrate
from regrow.rollout.engine import Engine
from regrow.rollout.inputs import (
    check_events,
    check_model,
    make_drafter,
    make_selector,
    seed_bits,
    stop_runs,
    token_lists,
    whole,
)
from regrow.rollout.layout import Layout
from regrow.rollout.linears import ModelForward
from regrow.rollout.memory import KeyValueBytes, available_bytes, fit
from regrow.rollout.next_tokens import NextTokens
from regrow.rollout.prompts import Prompts
from regrow.rollout.result import Rollout, Stats
from regrow.rollout.sampling import Sampling
from regrow.rollout.selector import Calibrated
from regrow.rollout.sequences import Stop
from regrow.rollout.step import Shapes


def generate(
    model, prompts, group=1, *, drafter=None, strategy=None, temperature=1.0, top_p=1.0, top_k=None, max_new_tokens,
    stop=None, seed=None, return_hidden=False, on_event=None, max_batch=None, budget_bytes=None,
):  # fmt: skip
    """Samples `group` responses to each prompt. Shared beginnings of prompts are computed once.

    model: a causal LM that `regrow.models.attach` has switched, or a `regrow.replay.Replayable`; one thread at a time.
    prompts: lists, arrays or tensors of token ids. temperature (0: greedy), top_p, top_k: as `Sampling`. stop: None,
    `max_new_tokens` alone ends a response; "eos", the model's own end tokens do too; or a list of token ids and of
    lists of them, behind the first of which a response ends, it included. seed: of 64 bits; None draws one from torch's
    generator. A sequence's tokens depend on the seed, its number and its positions alone: not on the batch, nor on
    drafts without distributions, but for rounding.

    drafter: "suffix", a `Drafter`, or None. strategy: a `Strategy`, "none", or a `Selector`; None takes by measured
    costs what pays, which may be nothing. The first time that measures them (`calibrate`: a hundred steps). Either way
    the distribution is exactly the model's own.

    max_batch: how many sequences run at once, None for all; others wait for their slots. budget_bytes: for keys and
    values, by default what is free. on_event: called with each event of `regrow.rollout.events`. return_hidden: keeps
    hidden states for training a draft model.

    Returns a `Rollout`. A KeyboardInterrupt ends it early, and what is finished is returned, with `interrupted` set;
    another exception carries it as its `rollout`. Raises ValueError for bad input, with the value and the remedy,
    before anything is computed; and for a batch that would not fit, with the largest that does.

        model = regrow.models.attach(model)
        rollout = regrow.rollout.generate(model, prompts, group=8, max_new_tokens=256, stop="eos", drafter="suffix")
        objective = GRPO(rollout.masks, advantages, old_logprobs=rollout.old_logprobs)
        regrow.replay.backward(model, rollout.tree, objective)
    """
    with torch.inference_mode(False), torch.no_grad():  # what is returned may be trained on
        adapted = adapt(model)
        weight = adapted.replay_head().weight
        vocabulary, device = weight.size(0), weight.device
        sampling = Sampling(temperature, top_p, top_k)
        prompts = Prompts(token_lists(prompts, vocabulary), whole("group", group))
        max_new_tokens = whole("max_new_tokens", max_new_tokens)
        check_model(model, adapted, prompts, max_new_tokens)
        check_events(on_event)
        ends = Stop(stop_runs(stop, model, vocabulary), max_new_tokens)
        seed, drafter = seed_bits(seed), make_drafter(drafter, vocabulary)
        selector = make_selector(strategy, drafter)
        max_live = min(
            prompts.num_sequences, prompts.num_sequences if max_batch is None else whole("max_batch", max_batch)
        )
        budget_bytes = available_bytes(device) if budget_bytes is None else whole("budget_bytes", budget_bytes)

        shapes = Shapes(prompts.unique[0][0], device)
        forward = ModelForward(adapted)
        forward(shapes)  # which also finds out about the head
        token_bytes = KeyValueBytes.of(shapes, prompts.longest + max_new_tokens)
        predicted = fit(prompts, max_new_tokens, max_live, token_bytes, budget_bytes)
        if drafter is not None and selector is None:
            selector = Calibrated(calibrate(model))
        keep_prompts = return_hidden or (drafter is not None and drafter.wants_hidden)
        layout = Layout(prompts, max_new_tokens, max_live)
        engine = Engine(
            Cache(forward, prompts, layout, token_bytes.windows, keep_hidden=keep_prompts, device=device),
            NextTokens(adapted.replay_head(), sampling, seed), ends, max_live=max_live, drafter=drafter,
            selector=selector, on_event=on_event, keep_hidden=return_hidden,
        )  # fmt: skip
        return run(engine, predicted)


def run(engine, predicted_bytes):
    """The `Rollout` of what is finished when the engine ends, or is interrupted."""
    interrupted = False
    try:
        engine.run()
    except KeyboardInterrupt:
        interrupted = True
    except Exception as error:
        error.rollout = collect(engine, predicted_bytes, interrupted=True)
        raise
    return collect(engine, predicted_bytes, interrupted)


def collect(engine, predicted_bytes, interrupted):
    """The `Rollout` of what is finished."""
    finished = sorted(engine.finished, key=lambda sequence: sequence.number)
    dtype = torch.float64 if engine.next_tokens.head.weight.dtype == torch.float64 else torch.float32
    rollout = Rollout(
        sequences=[torch.tensor(s.prompt_tokens + s.tokens, device="cpu") for s in finished],
        prompt_lengths=[len(s.prompt_tokens) for s in finished],
        logprobs=[torch.tensor(s.logprobs, dtype=dtype, device="cpu") for s in finished],
        sampling_logprobs=[torch.tensor(s.sampling_logprobs, dtype=dtype, device="cpu") for s in finished],
        reasons=[s.reason for s in finished],
        numbers=[s.number for s in finished],
        interrupted=interrupted,
        seed=engine.next_tokens.seed,
        stats=stats(engine, predicted_bytes),
        device=engine.cache.device,
    )
    return replace(rollout, hidden=hidden_on_axis(engine, rollout, finished)) if engine.keep_hidden else rollout


def stats(engine, predicted_bytes):
    trace = engine.trace
    return Stats(
        seconds=engine.now,
        prefill_seconds=engine.prefill_seconds,
        tokens=sum(len(sequence.tokens) for sequence in [*engine.finished, *engine.live]),
        rows=engine.cache.num_rows,
        steps=len(trace),
        drafted=sum(step.drafted for step in trace),
        accepted=sum(step.accepted for step in trace),
        predicted_kv_bytes=predicted_bytes,
        kv_bytes=engine.cache.peak_bytes,
        trace=trace,
    )


def hidden_on_axis(engine, rollout, finished):
    """[T,H]: beside each token the state from which it was drawn, 0 at roots."""
    if not finished:
        return None
    hidden = finished[0].hidden[0].new_zeros(rollout.tree.num_tokens, finished[0].hidden[0].size(-1))
    done = set()  # prompts
    for sequence, path in zip(finished, rollout.paths(), strict=True):
        length = len(sequence.prompt_tokens)
        if sequence.prompt not in done:
            hidden[path[1:length]] = engine.cache.prompt_hidden(sequence.prompt)[:-1]
            done.add(sequence.prompt)
        hidden[path[length:]] = torch.cat(sequence.hidden)
    return hidden
