"""Where bf16 makes greedy decoding differ with drafts, the two tokens were closer than bf16 rounds."""

import torch
from torch.overrides import TorchFunctionMode

import regrow.models
from lifted_casts import LiftedCasts
from model_families import make_model
from regrow.rollout import Strategy, generate

NEW, GROUP = 48, 16


class SplitProducts(TorchFunctionMode):
    """Sums a product of more than so many rows in two halves, as libraries do on some processors at some sizes."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear and args[0].size(-2) > GROUP:
            (x, y), (v, w) = args[0].chunk(2, -1), args[1].chunk(2, -1)
            return function(x, v) + function(y, w)
        return function(*args, **(kwargs or {}))


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)) if x != y), None)


def last_logits(model, tokens, lift=False):
    if lift:
        with LiftedCasts():
            return model(input_ids=tokens[None], use_cache=False).logits[0, -1]
    return model(input_ids=tokens[None], use_cache=False).logits[0, -1].double()


@torch.no_grad()
def test_a_difference_is_a_tie():
    exact, rounded = make_model("llama"), make_model("llama", dtype=torch.bfloat16)
    model = regrow.models.attach(make_model("llama", dtype=torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(64, (GROUP, 6), generator=generator).tolist()
    plain = generate(model, prompts, max_new_tokens=NEW, temperature=0)
    with SplitProducts():
        drafted = generate(
            model, prompts, max_new_tokens=NEW, temperature=0, drafter="suffix", strategy=Strategy(6, 2, 12)
        )
    assert drafted.stats.accepted > 0
    differing = 0
    for one, other in zip(plain.sequences, drafted.sequences, strict=True):
        place = first_difference(one, other)
        if place is None:
            continue
        differing += 1
        truth, seen = last_logits(exact, one[:place], lift=True), last_logits(rounded, one[:place])
        apart = (truth[one[place]] - truth[other[place]]).abs()
        assert apart <= 2 * (seen - truth).abs().max(), f"{place}: {apart}"
    assert 0 < differing < GROUP
