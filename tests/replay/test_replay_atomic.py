"""`.grad` changes once, at the end, or not at all: wherever an error or an interrupt strikes."""

import pytest
import torch

import regrow.models
import regrow.replay
from model_families import make_model, make_tree
from policy import Policy, random_tree
from replay_objectives import Additive, Coupled

TREE = random_tree([-1, 0, 0, 2, 2], [4, 3, 3, 2, 2])
CHUNK = 3


class Bomb(Exception):
    pass


class Fuse:
    """Raises at its n-th call, never for None; `calls` counts."""

    def __init__(self, after=None, error=Bomb):
        self.after, self.error, self.calls = after, error, 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == self.after:
            raise self.error("boom")


class BurnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fuse):
        ctx.fuse = fuse
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.fuse()
        return gradient, None


class FusedPolicy(Policy):
    """Strikes between its layers, forward or backward."""

    def __init__(self, fuses):
        super().__init__()
        self.fuses = fuses

    def hidden(self, tokens, position_ids, attend):
        def fused(layer, *qkv, **options):
            self.fuses["forward"]()
            return BurnBackward.apply(attend(layer, *qkv, **options), self.fuses["backward"])

        return super().hidden(tokens, position_ids, fused)


def fused(objective, fuse):
    """The objective, with a fuse in each of its calls."""

    class Fused(type(objective)):
        def __call__(self, *arguments):
            fuse()
            return super().__call__(*arguments)

    copy = Fused(TREE)
    if hasattr(objective, "on_tokens"):
        copy.on_tokens = lambda *arguments: fuse() or objective.on_tokens(*arguments)
    return copy


SITES = ("objective", "progress", "forward", "backward")


def replay(policy, objective, fuses, **options):
    policy.fuses = fuses
    return regrow.replay.backward(
        policy, TREE, fused(objective, fuses["objective"]), chunk_tokens=CHUNK, progress=fuses["progress"], **options
    )


def set_gradients(policy):
    """Gradients of which some are there and some are not; what they are."""
    generator = torch.Generator().manual_seed(5)
    for index, parameter in enumerate(policy.parameters()):
        given = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
        parameter.grad = None if index % 3 == 0 else given
    return [None if p.grad is None else (p.grad, p.grad.clone()) for p in policy.parameters()]


def assert_untouched(policy, before):
    for parameter, given in zip(policy.parameters(), before, strict=True):
        if given is None:
            assert parameter.grad is None
        else:
            assert parameter.grad is given[0] and torch.equal(*given)


def assert_added(policy, before, expected):
    for parameter, given, gradient in zip(policy.parameters(), before, expected, strict=True):
        assert given is None or parameter.grad is given[0]
        assert torch.equal(parameter.grad, gradient if given is None else given[1] + gradient)


# An objective that is scored on the fly, one that needs a values pass, and one run per segment.
MODES = {
    "exact": dict(objective=Additive),
    "not additive": dict(objective=Coupled),
    "detached": dict(objective=Additive, prefix_grad="detached"),
}


@pytest.mark.parametrize(("mode", "error"), [*((mode, Bomb) for mode in MODES), ("exact", KeyboardInterrupt)])
@pytest.mark.parametrize("site", SITES)
def test_wherever_it_strikes(mode, error, site):
    options = dict(MODES[mode])
    objective = options.pop("objective")(TREE)
    counting = {name: Fuse() for name in SITES}
    policy = FusedPolicy(counting)
    replay(policy, objective, counting, **options)
    expected = [parameter.grad for parameter in policy.parameters()]
    assert counting[site].calls > 0
    for after in range(1, counting[site].calls + 1):
        before = set_gradients(policy)
        with pytest.raises(error, match="boom"):
            replay(policy, objective, {name: Fuse(after if name == site else None, error) for name in SITES}, **options)
        assert_untouched(policy, before)
        assert not any(p._post_accumulate_grad_hooks for p in policy.parameters())
    replay(policy, objective, {name: Fuse() for name in SITES}, **options)
    assert_added(policy, before, expected)


@pytest.mark.parametrize("error", [Bomb, KeyboardInterrupt])
def test_a_transformers_model_that_was_interrupted(error):
    tree, model = make_tree(), regrow.models.attach(make_model("llama"))
    regrow.replay.backward(model, tree, Additive(tree), chunk_tokens=5)
    expected = [parameter.grad for parameter in model.parameters()]
    layer = model.model.layers[1].mlp
    for register in (layer.register_forward_pre_hook, layer.register_full_backward_hook):
        for after in (1, 3, 5):
            before = set_gradients(model)
            handle = register(Fuse(after, error))
            with pytest.raises(error, match="boom"):
                regrow.replay.backward(model, tree, Additive(tree), chunk_tokens=5)
            handle.remove()
            assert_untouched(model, before)
    assert not model.lm_head._forward_pre_hooks
    regrow.replay.backward(model, tree, Additive(tree), chunk_tokens=5)
    assert_added(model, before, expected)


def test_gradients_add_up():
    policy = Policy()
    for _ in range(3):
        stats = regrow.replay.backward(policy, TREE, Additive(TREE), chunk_tokens=CHUNK).stats
    thrice = [parameter.grad.clone() for parameter in policy.parameters()]
    assert stats.kept_gradient_bytes == stats.gradient_bytes == sum(p.nbytes for p in policy.parameters())
    policy.zero_grad()
    stats = regrow.replay.backward(policy, TREE, Additive(TREE), chunk_tokens=CHUNK).stats
    assert stats.kept_gradient_bytes == 0
    assert all(torch.equal(p.grad + p.grad + p.grad, sum_) for p, sum_ in zip(policy.parameters(), thrice, strict=True))


def test_without_a_second_copy():
    """atomic=False adds in place: the same gradients up to rounding, nothing set aside, and a part after an error."""
    policy = FusedPolicy(counting := {name: Fuse() for name in SITES})
    objective = Additive(TREE)
    replay(policy, objective, counting)
    expected = [parameter.grad for parameter in policy.parameters()]

    before = set_gradients(policy)
    result = replay(policy, objective, {name: Fuse() for name in SITES}, atomic=False)
    assert result.stats.kept_gradient_bytes == 0
    for parameter, given, gradient in zip(policy.parameters(), before, expected, strict=True):
        assert given is None or parameter.grad is given[0]
        torch.testing.assert_close(parameter.grad, gradient if given is None else given[1] + gradient)

    before = set_gradients(policy)
    with pytest.raises(Bomb):
        replay(policy, objective, {name: Fuse(1 if name == "forward" else None) for name in SITES}, atomic=False)
    assert_untouched(policy, before)
    last = counting["backward"].calls
    with pytest.raises(Bomb):
        replay(policy, objective, {name: Fuse(last if name == "backward" else None) for name in SITES}, atomic=False)
    assert not torch.equal(*before[2])  # what was added so far


@pytest.mark.parametrize("atomic", [True, False])
def test_16_bit_gradients_are_set_aside_in_any_case(atomic):
    policy = FusedPolicy({name: Fuse() for name in SITES}).bfloat16()
    before = set_gradients(policy)
    for site in ("forward", "backward"):
        with pytest.raises(Bomb):
            fuses = {name: Fuse(5 if name == site else None) for name in SITES}
            replay(policy, Additive(TREE), fuses, atomic=atomic)
        assert_untouched(policy, before)


def test_sparse_gradients():
    policy = Policy()
    regrow.replay.backward(policy, TREE, Additive(TREE), chunk_tokens=CHUNK)
    expected = policy.embedding.weight.grad.clone()
    policy.embedding.sparse = True
    policy.zero_grad()
    for _ in range(2):
        regrow.replay.backward(policy, TREE, Additive(TREE), chunk_tokens=CHUNK)
    torch.testing.assert_close(policy.embedding.weight.grad.to_dense(), 2 * expected)
