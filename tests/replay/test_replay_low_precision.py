"""bf16 models, autocast and quantised bases: what rounds, rounds as one backward pass would."""

import peft
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regrow.models
import regrow.replay
import regrow.replay.gradients
from model_families import gradients, make_model, make_tree, relative_l2
from policy import Policy, random_tree
from replay_objectives import Additive

TREE = make_tree()


def monolithic(model, objective):
    logp, entropy = regrow.models.logprobs(model, TREE, return_entropy=True)
    objective(logp, TREE, entropy).backward()
    return gradients(model)


def errors_of(model, expected):
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    actual = gradients(model)
    assert all(gradient.isfinite().all() for gradient in actual.values())
    return {name: relative_l2(actual[name].double(), gradient.double()) for name, gradient in expected.items()}


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss"])
def test_bf16_models(family):
    model = regrow.models.attach(make_model(family)).float()
    truth = monolithic(model, Additive(TREE))
    model.bfloat16()
    rounded = errors_of(set_to(model, monolithic(model, Additive(TREE))), truth)
    for chunk_tokens in (1, 5, 64):
        result = regrow.replay.backward(model, TREE, Additive(TREE), chunk_tokens=chunk_tokens)
        assert result.logprobs.dtype == result.entropy.dtype == torch.float32
        assert result.stats.differing_elements == 0
        ours = errors_of(model, truth)
        assert {name: (error, rounded[name]) for name, error in ours.items() if not error <= 2 * rounded[name]} == {}


def set_to(model, values):
    for name, parameter in model.named_parameters():
        parameter.grad = values[name]
    return model


@pytest.fixture
def bf16_sums():
    """Errors of a bf16 policy's gradients, one token at a time, against the same contributions summed in fp64."""
    tree = random_tree([-1] + [0] * 12, [40] + [5] * 12)
    policy = Policy().bfloat16()

    def run(monkeypatch, wide):
        monkeypatch.setattr(regrow.replay.gradients, "WIDE", wide)
        assert regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=1).stats.segments > 80
        return gradients(policy)

    return run


def test_16_bit_gradients_are_summed_in_fp32(bf16_sums, monkeypatch):
    ours = bf16_sums(monkeypatch, regrow.replay.gradients.WIDE)
    exact = bf16_sums(monkeypatch, {torch.bfloat16: torch.float64})
    narrow = bf16_sums(monkeypatch, {})
    for name, gradient in ours.items():
        assert gradient.dtype == torch.bfloat16
        error, naive = (relative_l2(x[name].double(), exact[name].double()) for x in (ours, narrow))
        assert error <= 2**-8
        assert naive > 4 * error or naive == 0.0, name
    assert max(relative_l2(narrow[name].double(), exact[name].double()) for name in ours) > 2**-7


def checkpointed(model, reentrant):
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    return model


# What autocast has cast without autograd is met again: by plain runs after a capture, by reentrant checkpoints always.
CHECKPOINTS = {
    "none": lambda model: model,
    "non-reentrant": lambda model: checkpointed(model, False),
    "reentrant": lambda model: checkpointed(model, True),
}


@pytest.mark.parametrize("checkpoints", CHECKPOINTS)
@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_autocast(family, checkpoints):
    model = regrow.models.attach(make_model(family)).float()
    truth = monolithic(model, Additive(TREE))
    with torch.autocast("cpu", torch.bfloat16):
        logp, entropy = regrow.models.logprobs(model, TREE, return_entropy=True)
        loss = Additive(TREE)(logp, TREE, entropy)
    loss.backward()
    rounded = errors_of(model, truth)
    CHECKPOINTS[checkpoints](model)
    for chunk_tokens in (1, 5, 64):
        with torch.autocast("cpu", torch.bfloat16):
            result = regrow.replay.backward(model, TREE, Additive(TREE), chunk_tokens=chunk_tokens)
        assert result.stats.differing_elements == 0
        ours = errors_of(model, truth)
        assert {name: (error, rounded[name]) for name, error in ours.items() if not error <= 2 * rounded[name]} == {}


class Casting(Policy):
    """Casts two weights once, with autograd or without, until its cache is cleared: autocast up to torch 2.10."""

    def __init__(self):
        super().__init__()
        self.gain, self.mix = (torch.nn.Parameter(torch.randn(16, 16, dtype=torch.float64)) for _ in "ab")
        self.casts = {}

    def cast(self, name):
        if name not in self.casts:
            self.casts[name] = getattr(self, name).clone()
        return self.casts[name]

    def hidden(self, *arguments):
        x = super().hidden(*arguments) @ self.cast("gain")  # met after a capture, which runs without autograd
        return checkpoint(lambda x: x @ self.cast("mix"), x, use_reentrant=True)  # and after its own forward


def test_autocast_s_cache_is_cleared(monkeypatch):
    """torch 2.11 keeps autograd in it (pytorch#165068); before, weights lost their gradients and nothing was raised."""
    tree = random_tree([-1, 0, 0], [6, 4, 4])

    def run(clear):
        policy = Casting()
        monkeypatch.setattr(torch, "clear_autocast_cache", lambda: clear(policy))
        regrow.replay.backward(policy, tree, Additive(tree), chunk_tokens=3)
        return gradients(policy)

    cleared, kept = run(lambda policy: policy.casts.clear()), run(lambda policy: None)
    monkeypatch.setattr(Casting, "cast", lambda policy, name: getattr(policy, name))
    expected = run(lambda policy: None)
    assert max(relative_l2(cleared[name], expected[name]) for name in expected) <= 1e-12
    for name in ("gain", "mix"):
        assert relative_l2(kept[name], expected[name]) > 0.1  # the trap is real


class Int8Linear(torch.nn.Linear):
    """A frozen base as quantisers leave it: whole numbers and a scale per output, made wide again in the forward."""

    def __init__(self, linear):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = torch.nn.Parameter((linear.weight / scale).round().to(torch.int8), requires_grad=False)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * self.scale, self.bias)


def test_adapters_on_a_quantised_base():
    model = make_model("llama").float().requires_grad_(False)
    linears = [
        (parent, name, child)
        for parent in model.model.modules()
        for name, child in parent.named_children()
        if isinstance(child, torch.nn.Linear)
    ]
    for parent, name, child in linears:
        setattr(parent, name, Int8Linear(child))
    config = peft.LoraConfig(target_modules=r".*self_attn\.(q|v)_proj", init_lora_weights=False)
    model = regrow.models.attach(peft.get_peft_model(model, config))
    assert sum(parameter.dtype == torch.int8 for parameter in model.parameters()) == len(linears) == 14
    expected = monolithic(model, Additive(TREE))
    assert expected and all("lora" in name for name in expected)
    for chunk_tokens in (1, 5):
        result = regrow.replay.backward(model, TREE, Additive(TREE), chunk_tokens=chunk_tokens)
        assert result.stats.differing_elements == 0
        assert max(errors_of(model, expected).values()) <= 1e-4
