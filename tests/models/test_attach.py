"""attach switches one model, whatever it is wrapped in, and no other."""

import copy
import io

import accelerate
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import regrow.models
from lifted_casts import LiftedCasts
from model_families import alone, make_config, make_model, relative_l2


def implementation(model):
    return model.config._attn_implementation


def configs(model):
    """Every config object in the model's modules, inner ones too."""
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None:
            yield config
            yield from (getattr(config, name) for name in config.sub_configs)


def assert_packed_is_alone(model, tree):
    with torch.no_grad(), LiftedCasts():
        packed = tree.unpack(regrow.models.packed(model, tree).logits[0])
        assert relative_l2(packed, alone(model)[0]) <= 1e-12


def test_a_model_that_shares_the_config_stays_as_it_was(tree):
    config = make_config("llama")
    policy, reference = (
        AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval() for _ in range(2)
    )
    assert policy.config is reference.config is config
    assert regrow.models.attach(policy) is policy
    assert {implementation(part) for part in policy.modules() if hasattr(part, "config")} == {"regrow"}
    assert implementation(reference) == config._attn_implementation == "sdpa"
    assert_packed_is_alone(policy, tree)
    with pytest.raises(ValueError, match="'sdpa' ignores tree="):
        regrow.models.packed(reference, tree)


def test_all_modules_of_a_model_share_one_copy(model):
    regrow.models.attach(model)
    assert len({id(config) for config in configs(model)}) == 1


def test_configs_inside_configs():
    text = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                head_dim=8, vocab_size=64)  # fmt: skip
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    config = make_config("gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model, reference = (
        AutoModelForCausalLM.from_config(copy.copy(config), attn_implementation="sdpa").eval() for _ in range(2)
    )
    assert model.config.text_config is reference.config.text_config  # copy.copy is shallow
    regrow.models.attach(model)
    language_model = model.model.language_model
    assert model.config.text_config is language_model.config
    assert {implementation(model), implementation(language_model)} == {"regrow"}
    assert {config._attn_implementation for config in configs(reference)} == {"sdpa"}


def test_attaching_twice_changes_nothing(model, tree):
    regrow.models.attach(model)
    config, hooks = model.config, dict(model._forward_pre_hooks)
    regrow.models.attach(model)
    assert model.config is config and model._forward_pre_hooks == hooks
    model.set_attn_implementation("eager")
    assert_packed_is_alone(regrow.models.attach(model), tree)
    assert model._forward_pre_hooks == hooks


def test_copies_and_checkpoints(model, tree):
    regrow.models.attach(model)
    clone = copy.deepcopy(model)
    assert clone.config is not model.config
    clone.set_attn_implementation("sdpa")
    assert_packed_is_alone(model, tree)
    assert "_attn_implementation" not in model.config.to_dict()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert list(model.state_dict()) == list(make_model("llama").state_dict())


def test_lora_around_an_attached_model_and_attach_around_lora(tree):
    for attach_first in (True, False):
        model = make_model("llama")
        if attach_first:
            regrow.models.attach(model)
        config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        wrapped = peft.get_peft_model(model, config).double().eval()
        assert regrow.models.attach(wrapped) is wrapped
        assert {config._attn_implementation for config in configs(wrapped)} == {"regrow"}
        assert_packed_is_alone(wrapped, tree)
        with wrapped.disable_adapter():
            without = regrow.models.packed(wrapped, tree).logits
        assert not torch.equal(regrow.models.packed(wrapped, tree).logits, without)
        assert torch.equal(regrow.models.packed(regrow.models.attach(make_model("llama")), tree).logits, without)


# They put tokens or keys of their own before everything, and give the model positions of their own.
@pytest.mark.filterwarnings("ignore:Position ids")
@pytest.mark.parametrize("config", [peft.PromptTuningConfig, peft.PrefixTuningConfig])
def test_prompt_learning_is_refused(tree, config):
    wrapped = peft.get_peft_model(make_model("llama"), config(task_type="CAUSAL_LM", num_virtual_tokens=3)).double()
    with pytest.raises(ValueError, match=r"position_ids (is missing|are not the tree's)"):
        regrow.models.packed(regrow.models.attach(wrapped), tree)


# Autocast rounds values to bf16 and leaves queries and keys, which pass the rotary embedding, in fp32.
@pytest.mark.parametrize("mixed_precision", ["no", "bf16"])
def test_accelerate(tree, mixed_precision):
    model = make_model("llama", dtype=torch.float32)
    expected = regrow.models.logprobs(regrow.models.attach(copy.deepcopy(model)), tree)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed_precision)
    prepared = regrow.models.attach(accelerator.prepare(model))
    logp = regrow.models.logprobs(prepared, tree)
    limit = 0.02 if mixed_precision == "bf16" else 1e-6
    assert relative_l2(logp.float(), expected.float()) < limit
    logp.sum().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())


def test_distributed_data_parallel(model, tree):
    expected = regrow.models.logprobs(regrow.models.attach(copy.deepcopy(model)), tree)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        parallel = regrow.models.attach(torch.nn.parallel.DistributedDataParallel(model))
        logp = regrow.models.logprobs(parallel, tree)
        assert torch.equal(logp, expected)
        logp.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_a_class_that_attach_cannot_switch():
    model = AutoModelForCausalLM.from_config(make_config("bloom", n_layer=1, n_head=2, hidden_size=16))
    with pytest.raises(
        ValueError, match="BloomForCausalLM does not take its attention from transformers' AttentionInter"
    ):
        regrow.models.attach(model)


def test_no_transformers_model():
    with pytest.raises(ValueError, match="there is no transformers model in this Linear"):
        regrow.models.attach(torch.nn.Linear(2, 2))


def test_from_config_and_set_attn_implementation_need_no_attach(tree):
    model = LlamaForCausalLM._from_config(make_config("llama"), attn_implementation="regrow").double().eval()
    assert_packed_is_alone(model, tree)
    model.set_attn_implementation("sdpa")
    model.set_attn_implementation("regrow")
    assert_packed_is_alone(model, tree)


# The eager backend traces as every other does, in a tenth of the time.
@torch.no_grad()
def test_compiled(model, tree):
    regrow.models.attach(model)
    logits, logp = regrow.models.packed(model, tree).logits, regrow.models.logprobs(model, tree)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(regrow.models.packed(compiled, tree).logits, logits, rtol=1e-12, atol=1e-12)

    model.model.compile(backend="eager")
    for _ in range(2):
        torch.testing.assert_close(regrow.models.logprobs(model, tree), logp, rtol=1e-12, atol=1e-12)
