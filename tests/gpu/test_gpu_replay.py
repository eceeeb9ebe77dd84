"""Replay on a device in bf16: as near to fp32 as one pass over the tree, the same bits twice, memory as predicted."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import regrow
from regrow import replay
from regrow.live_bytes import measure_bytes
from regrow.models import attach

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("one_thread")]

PROMPT, GROUP, RESPONSE = 300, 4, 40
CHUNK_TOKENS = 96  # inner segments, a leaf with the prompt's last tokens, several responses in it


def objective(logp, tree, entropy):
    weights = torch.linspace(-1, 2, tree.num_tokens, device=logp.device)
    return (logp * weights * (tree.position_ids >= PROMPT)).sum() / 50 + entropy.mean() / 10


@pytest.fixture(scope="module")
def exact():
    config = AutoConfig.for_model(
        "qwen2", vocab_size=320, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=4096, use_sliding_window=True, sliding_window=64,
        layer_types=["full_attention", "sliding_attention", "full_attention"], tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return attach(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


@pytest.fixture
def tree(device):
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(320, (PROMPT,), generator=generator)
    return regrow.PrefixTree.from_sequences(
        [torch.cat([prompt, torch.randint(320, (RESPONSE,), generator=generator)]) for _ in range(GROUP)]
    ).to(device)


@pytest.fixture
def model(exact, device):
    return copy.deepcopy(exact).bfloat16().to(device)


def flat_gradient(model):
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double().cpu()
    model.zero_grad(set_to_none=True)
    return gradient


def test_gradient_is_as_near_to_fp32_as_one_pass(exact, model, tree):
    replay.backward(exact, tree.to("cpu"), objective, chunk_tokens=CHUNK_TOKENS)
    truth = flat_gradient(exact)
    logp, entropy = regrow.models.logprobs(model, tree, return_entropy=True)
    objective(logp, tree, entropy).backward()
    plain = (flat_gradient(model) - truth).norm() / truth.norm()
    result = replay.backward(model, tree, objective, chunk_tokens=CHUNK_TOKENS)
    ours = (flat_gradient(model) - truth).norm() / truth.norm()
    assert result.stats.inner_segments > 1 and result.stats.differing_elements == 0
    assert 0 < ours <= 1.2 * plain


def test_the_same_bits_twice(model, tree):
    first, second = (
        (replay.backward(model, tree, objective, chunk_tokens=CHUNK_TOKENS), flat_gradient(model)) for _ in range(2)
    )
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[0].logprobs, second[0].logprobs) and first[0].loss == second[0].loss


def test_memory_is_as_predicted(model, tree, device):
    predicted = replay.predict(model, tree, objective, chunk_tokens=CHUNK_TOKENS)
    run = lambda: replay.backward(model, tree, objective, chunk_tokens=CHUNK_TOKENS)  # noqa: E731
    if device.type == "cuda":  # libraries take their workspaces on first use, and keep them
        run()
        model.zero_grad(set_to_none=True)
    assert predicted.total == pytest.approx(measure_bytes(run, device).peak, rel=0.05)
