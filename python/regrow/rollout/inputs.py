"""Checks of what `generate` is given: each names the value and the remedy, before anything is computed."""

import operator

import torch

from regrow.replay.model import refuse_dropout
from regrow.rollout.costs import CostTable
from regrow.rollout.drafters import Drafter
from regrow.rollout.selector import Fixed, Selector
from regrow.rollout.strategy import NONE
from regrow.rollout.suffix import SuffixDrafter


def whole(name, value):
    """The value as an int of at least 1."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}: give a whole number, 1 or more") from None
    if number < 1:
        raise ValueError(f"{name} is {number}: give 1 or more")
    return number


def seed_bits(seed):
    """The int modulo 2^64; one of torch's generator for None."""
    if seed is None:
        return torch.randint(2**63 - 1, (), device="cpu").item()
    try:
        return operator.index(seed) % 2**64
    except TypeError:
        raise ValueError(f"seed is {seed!r}: give a whole number, or None for one of torch's generator") from None


def token_list(name, tokens, vocabulary):
    """A flat list of ids inside the vocabulary."""
    try:
        ids = list(map(operator.index, tokens.tolist() if hasattr(tokens, "tolist") else tokens))
    except TypeError:
        raise ValueError(f"{name} is {tokens!r:.80}: give a flat list, array or tensor of token ids") from None
    if not ids:
        raise ValueError(f"{name} is empty: give at least one token")
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"{name} has token {token}, the model's vocabulary {vocabulary}: use the model's tokenizer"
            )
    return ids


def token_lists(prompts, vocabulary):
    """Prompts as lists of ids."""
    try:
        rows = [] if isinstance(prompts, str) else list(prompts)
    except TypeError:  # a number, a tensor without dimensions
        rows = []
    if not rows:
        raise ValueError(f"prompts is {prompts!r:.80}: give a list of at least one prompt of token ids")
    return [token_list(f"prompt {index}", prompt, vocabulary) for index, prompt in enumerate(rows)]


def stop_runs(stop, model, vocabulary):
    """The runs of tokens behind which a response ends."""
    if stop is None:
        return []
    if isinstance(stop, str):
        if stop != "eos":
            raise ValueError(f"stop is {stop!r}: give None, 'eos', or a list of token ids and of lists of them")
        return [[token] for token in end_tokens(model)]
    if isinstance(stop, torch.Tensor):
        stop = stop.tolist()
    if isinstance(stop, int) or not hasattr(stop, "__iter__"):
        raise ValueError(f"stop is {stop!r}: give None, 'eos', or a list of token ids and of lists of them")
    return [
        token_list(f"stop {index}", run if hasattr(run, "__len__") else [run], vocabulary)
        for index, run in enumerate(stop)
    ]


def end_tokens(model):
    """The ids that the model's own configuration ends a text with."""
    for module in model.modules():
        for config in (getattr(module, "generation_config", None), getattr(module, "config", None)):
            found = getattr(config, "eos_token_id", None)
            if found is not None:
                return list(found) if isinstance(found, (list, tuple)) else [found]
    raise ValueError("stop is 'eos', and the model's config names no eos_token_id: give stop=[id]")


def check_model(model, adapted, prompts, max_new_tokens):
    """Dropout, and sequences that leave the model's context."""
    refuse_dropout(model)
    context = getattr(adapted, "context_tokens", None)
    longest = max(range(len(prompts.unique)), key=lambda index: len(prompts.unique[index]))
    length = len(prompts.unique[longest])
    if context is None or length + max_new_tokens <= context:
        return
    remedy = f"give max_new_tokens of at most {context - length}" if length < context else "shorten it"
    raise ValueError(
        f"a prompt has {length} tokens and max_new_tokens is {max_new_tokens}, the model's context {context}: {remedy}"
    )


def make_drafter(drafter, vocabulary):
    """The drafter itself, the one that the name stands for, or None."""
    if drafter is None:
        return None
    if isinstance(drafter, str):
        if drafter != "suffix":
            raise ValueError(f"drafter is {drafter!r}: give 'suffix', a regrow.rollout.Drafter, or None")
        return SuffixDrafter(vocabulary)
    if not isinstance(drafter, Drafter):
        raise ValueError(f"drafter is a {type(drafter).__name__}: give 'suffix', a regrow.rollout.Drafter, or None")
    if drafter.vocabulary not in (None, vocabulary):
        raise ValueError(
            f"the drafter's vocabulary has {drafter.vocabulary} tokens, the model's {vocabulary}: "
            "use a drafter of the model's tokenizer"
        )
    return drafter


def make_selector(strategy, drafter):
    """What decides how much to draft; None without a drafter, and where measured costs are to decide."""
    if isinstance(strategy, CostTable):
        raise ValueError("strategy is a CostTable: give Calibrated(costs)")
    if strategy is None or isinstance(strategy, Selector):
        return strategy if drafter is not None else None
    fixed = Fixed(strategy)
    if drafter is None and fixed.strategy != NONE:
        raise ValueError(f"strategy is {strategy}, and nothing drafts: give a drafter, 'suffix' for one")
    return None if drafter is None else fixed


def check_events(on_event):
    if on_event is not None and not callable(on_event):
        raise ValueError(f"on_event is a {type(on_event).__name__}: give a function of one event")
