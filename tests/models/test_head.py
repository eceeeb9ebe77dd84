"""regrow.models.logprobs: the log-probs of the model's own logits, for every kind of head, and never [T, V]."""

import peft
import pytest
import torch
from transformers import AutoModel

import regrow.models
from lifted_casts import LiftedCasts
from model_families import alone, make_config, make_model, make_tree, relative_l2
from regrow.models.head import find_scaling

SCALED = {
    "divided": ("granite", dict(logits_scaling=3.0)),
    "barely divided": ("granite", dict(logits_scaling=1.01)),
    "multiplied": ("cohere", dict(logit_scale=0.25)),
    "before the head": ("minicpm3", dict(
        dim_model_base=8, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8,
    )),
    "capped": ("gemma2", {}),
}  # fmt: skip


# Configs name what happens to logits alike, and models apply it differently.
@pytest.mark.parametrize("kind", SCALED)
@torch.no_grad()
def test_scaled_and_capped_logits(tree, kind):
    family, options = SCALED[kind]
    model = make_model(family, **options)
    with LiftedCasts():
        expected = alone(model)[1]
        regrow.models.attach(model)
        assert relative_l2(tree.unpack(regrow.models.logprobs(model, tree)), expected) < 1e-12


def test_temperature_and_entropy(model, tree):
    regrow.models.attach(model)
    with LiftedCasts():
        logp, entropy = regrow.models.logprobs(model, tree, temperature=0.7, return_entropy=True)
        logits = regrow.models.packed(model, tree).logits[0] / 0.7
    scores = logits.log_softmax(-1)[tree.parent_index]
    real = tree.parent_index >= 0
    picked = scores.gather(1, tree.tokens[:, None])[:, 0]
    torch.testing.assert_close(logp, torch.where(real, picked, 0), rtol=1e-12, atol=1e-12)
    own = -(scores.exp() * scores).sum(-1)
    torch.testing.assert_close(entropy, torch.where(real, own, 0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(tree, dtype):
    exact = regrow.models.logprobs(regrow.models.attach(make_model("gemma2")), tree)
    logp = regrow.models.logprobs(regrow.models.attach(make_model("gemma2", dtype=dtype)), tree)
    assert logp.dtype == torch.float32
    assert relative_l2(logp.double(), exact) < 20 * torch.finfo(dtype).eps


def test_the_head_runs_on_one_row(model, tree):
    regrow.models.attach(model)
    rows = []
    model.lm_head.register_forward_hook(lambda module, arguments, logits: rows.append(logits.size(1)))
    regrow.models.logprobs(model, tree).sum().backward()
    assert rows == [1]
    assert len(model.lm_head._forward_pre_hooks) == 0


def test_a_failed_call_leaves_no_hook(model, tree):
    with pytest.raises(ValueError, match="'eager' ignores tree="):
        regrow.models.logprobs(model, tree)
    assert len(model.lm_head._forward_pre_hooks) == 0


def test_nan_stays_nan(model, tree):
    regrow.models.attach(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[1] = float("nan")
    assert regrow.models.logprobs(model, tree).isnan().any()


def refused(text):
    return pytest.raises(ValueError, match=text)


def test_a_bias(model, tree):
    model.lm_head = torch.nn.Linear(32, 64, dtype=torch.float64)
    with refused("the LM head has a bias, which tree_logprobs does not add"):
        regrow.models.logprobs(regrow.models.attach(model), tree)


@pytest.mark.parametrize("options", [{"target_modules": ["q_proj", "lm_head"]}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_on_the_head(model, tree, options):
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**{"target_modules": ["q_proj"], **options})).double()
    with refused(r"the LM head is a peft\..*: leave adapters and quantisation off the head"):
        regrow.models.logprobs(regrow.models.attach(wrapped), tree)


def test_a_decoder_without_a_head(tree):
    decoder = AutoModel.from_config(make_config("llama"), attn_implementation="regrow")
    with refused("LlamaModel has no LM head: give a causal LM"):
        regrow.models.logprobs(decoder, tree)


# A step that the config does not name must not go unnoticed.
def test_an_unknown_step_after_the_head(model, tree):
    model.lm_head.register_forward_hook(lambda module, arguments, logits: logits * 1.5)
    with refused(r"LlamaForCausalLM's logits are not its head's weight times.*softcap None, scaling \[\]"):
        regrow.models.logprobs(regrow.models.attach(model), tree)


# On rows as small as this model's, a cap of 30 moves the largest logit by a hundredth.
def test_an_unknown_softcap(model, tree):
    model.lm_head.register_forward_hook(lambda module, arguments, logits: 30 * torch.tanh(logits / 30))
    with refused("LlamaForCausalLM's logits are not its head's weight times"):
        regrow.models.logprobs(regrow.models.attach(model), tree)


def test_a_head_that_runs_on_other_rows(model, tree):
    regrow.models.attach(model)
    model.lm_head.register_forward_pre_hook(lambda module, arguments: arguments[0][:, 3:])
    with refused(r"the LM head must run once, on all 22 rows, and ran on \[\[1, 19\]\]"):
        regrow.models.logprobs(model, tree)


@pytest.mark.parametrize("compile", [lambda model: torch.compile(model), lambda model: model.compile() or model])
def test_a_compiled_model(model, tree, compile):
    compiled = compile(regrow.models.attach(model))
    with refused(r"the whole model is compiled.*: compile its decoder, model.model.compile\(\)"):
        regrow.models.logprobs(compiled, tree)


def test_the_scaling_that_fits_best_is_found():
    hidden, weight = torch.randn(1, 8).double(), torch.randn(16, 8).double()
    model = make_model("cohere", logit_scale=0.9)
    for scale in (0.9, 1 / 0.9, 1.0):
        assert find_scaling(model, hidden, weight, scale * (hidden @ weight.T)) == (pytest.approx(scale), None)
    with refused("logits are not its head's weight"):
        find_scaling(model, hidden, weight, 0.8 * (hidden @ weight.T))


def test_the_tree_of_these_tests_forks():
    assert make_tree().num_nodes > make_tree().num_sequences
