"""A tiny random Llama and a batch whose tree has every shape that matters."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from regrow.demo.batch import make_batch
from regrow.demo.rollout import Group


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def groups():
    """Two prompts that fork late; responses that are equal, one the beginning of another, forked at once, one token."""
    shared = [1, 5, 9, 2, 7, 7, 3]
    first = [[20, 21, 2], [20, 21, 2], [20, 21], [22, 2]]
    second = [[20, 30, 31, 32], [20, 30, 33], [40]]
    return [
        Group("a", "8", [*shared, 11, 12], first, ["text"] * 4, [1.0, 0.5, 0.0, 0.0]),
        Group("b", "9", [*shared, 13], second, ["text"] * 3, [0.0, 1.0, 0.0]),
    ]


@pytest.fixture
def batch(groups):
    return make_batch(groups)
