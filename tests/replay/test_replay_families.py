"""Replay gives the gradients of the sequences one by one under eager attention, in fp64, for every family."""

from functools import lru_cache

import peft
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regrow.models
import regrow.replay
from lifted_casts import LiftedCasts, recompute_lifted
from model_families import FAMILIES, alone, gradients, make_model, make_tree, relative_l2
from replay_objectives import Additive, Coupled

LIMIT = 1e-10  # the largest seen is 2e-14

TREE = make_tree()  # 22 tokens


def sequences_alone(model, objective):
    """logp and entropy [sequences end to end], and gradients by name."""
    logits, logp = alone(model)
    entropy = torch.distributions.Categorical(logits=logits).entropy().roll(1)
    first = torch.zeros_like(entropy, dtype=torch.bool).index_fill(0, TREE.cu_seqlens[:-1], True)
    entropy = entropy.masked_fill(first, 0.0)
    loss = objective.of_sequences(logp, entropy, TREE)
    loss.backward()
    return loss.detach(), logp.detach(), entropy.detach(), gradients(model)


@lru_cache
def expected_of(family, objective):
    return sequences_alone(make_model(family), objective(TREE))


def assert_replay(model, objective, expected, **options):
    with LiftedCasts():
        result = regrow.replay.backward(model, TREE, objective, **options)
    values = result.loss, TREE.unpack(result.logprobs), TREE.unpack(result.entropy)
    for name, ours, theirs in zip(("loss", "logp", "entropy"), values, expected, strict=False):
        assert relative_l2(ours, theirs) <= LIMIT, name
    assert result.stats.differing_elements == 0
    assert result.stats.compared_elements > 0 or result.stats.inner_segments == 0
    missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    actual = gradients(model)
    assert actual.keys() == expected[3].keys()
    errors = {name: relative_l2(actual[name], gradient) for name, gradient in expected[3].items()}
    assert {name: error for name, error in errors.items() if not error <= LIMIT} == {}
    assert all(gradient.norm() > 0 for gradient in expected[3].values()) and not missing
    return result


def checkpointed(model, reentrant):
    """Every layer under gradient checkpointing; what it computes again is lifted too."""
    model.train()
    if not reentrant:
        model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": recompute_lifted})
        return model

    def again(layer, *arguments):
        def lifted(*arguments):
            with LiftedCasts():
                return layer(*arguments)

        return checkpoint(lifted, *arguments, use_reentrant=True)

    model.activation_checkpointing_enable({"use_reentrant": True})
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = again
    return model


# One token at a time, of which six predict nothing; pieces that end within nodes; all at once: nothing runs twice.
CHUNKS = {1: 16, 7: 6, 64: 1}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_tokens", CHUNKS)
def test_every_sequence_alone(family, chunk_tokens):
    model = regrow.models.attach(make_model(family))
    expected = expected_of(family, Additive)
    stats = assert_replay(model, Additive(TREE), expected, chunk_tokens=chunk_tokens).stats
    assert stats.segments == CHUNKS[chunk_tokens]
    with LiftedCasts():
        logp, entropy = regrow.replay.logprobs(model, TREE, chunk_tokens=chunk_tokens, return_entropy=True)
    assert relative_l2(TREE.unpack(logp), expected[1]) <= LIMIT
    assert relative_l2(TREE.unpack(entropy), expected[2]) <= LIMIT


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_tokens", [3, 64])
def test_an_objective_that_is_no_sum(family, chunk_tokens):
    model = regrow.models.attach(make_model(family))
    assert_replay(model, Coupled(TREE), expected_of(family, Coupled), chunk_tokens=chunk_tokens)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing(family, reentrant):
    model = checkpointed(regrow.models.attach(make_model(family)), reentrant)
    stats = assert_replay(model, Additive(TREE), expected_of(family, Additive), chunk_tokens=4).stats
    plain = assert_replay(model.eval(), Additive(TREE), expected_of(family, Additive), chunk_tokens=4).stats
    assert stats.compared_elements > plain.compared_elements  # checkpoints computed again, and were compared


def only(*trainable):
    def freeze(model):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith(trainable))
        return model

    return freeze


def lora(model):
    config = peft.LoraConfig(target_modules=r".*self_attn\.(q|k|o|kv_b)_proj", init_lora_weights=False)
    return peft.get_peft_model(model, config).double()


# Each leaves out other inputs of attention that need a gradient.
PARTS = {
    "adapters": lora,
    "keys of the first layer": only("layers.0.self_attn.k_proj.weight"),
    "values of the first layer": only("layers.0.self_attn.v_proj.weight"),
    "queries of the last layer": only("layers.1.self_attn.q_proj.weight"),
    "keys of the last layer": only("layers.1.self_attn.k_proj.weight"),
    "the head": only("lm_head.weight"),
    "all but the embedding": lambda model: model.get_input_embeddings().requires_grad_(False) and model,
    "only the embedding": only("embed_tokens.weight"),
}


@pytest.mark.parametrize(
    ("family", "part"), [*(("llama", part) for part in PARTS), ("gemma2", "keys of the first layer")]
)
def test_a_part_of_the_model(family, part):
    model = PARTS[part](make_model(family))
    expected = sequences_alone(model, Additive(TREE))
    regrow.models.attach(model)
    for chunk_tokens in (1, 4):
        assert_replay(model, Additive(TREE), expected, chunk_tokens=chunk_tokens)


@pytest.mark.parametrize("family", ["llama-tied", "deepseek-v3"])
def test_adapters_under_checkpointing(family):
    model = lora(make_model(family))
    expected = sequences_alone(model, Additive(TREE))
    checkpointed(regrow.models.attach(model).base_model.model, reentrant=False)
    assert_replay(model, Additive(TREE), expected, chunk_tokens=4)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature(temperature):
    model = regrow.models.attach(make_model("gemma2"))
    with LiftedCasts():
        logp, entropy = regrow.models.logprobs(model, TREE, temperature=temperature, return_entropy=True)
        Additive(TREE)(logp, TREE, entropy).backward()
    expected = gradients(model)
    with LiftedCasts():
        result = regrow.replay.backward(model, TREE, Additive(TREE), chunk_tokens=4, temperature=temperature)
    assert relative_l2(result.logprobs, logp.detach()) <= LIMIT
    assert relative_l2(result.entropy, entropy.detach()) <= LIMIT
    actual = gradients(model)
    assert max(relative_l2(actual[name], expected[name]) for name in expected) <= LIMIT
