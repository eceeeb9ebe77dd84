"""A tree that does not reach every layer's attention is refused, since SDPA would run across branches instead."""

import copy

import pytest
import torch

import regrow.models
from model_families import make_model
from regrow.models.calls import RUNNING

DROPPED = "does not pass tree= on to its attention"


def attached(model):
    return regrow.models.attach(model)


def switched(model):
    model.set_attn_implementation("regrow")
    return model


def call(model, tree):
    return model(input_ids=tree.tokens[None], position_ids=tree.position_ids[None], tree=tree, use_cache=False)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    yield
    assert RUNNING.call is None


# Their decoder layers hand only what they name to self_attn.
@pytest.mark.parametrize("family", ["stablelm", "nemotron"])
def test_layers_that_keep_the_tree_to_themselves(tree, family):
    for switch in (switched, attached):
        model = switch(make_model(family))
        for function in (regrow.models.packed, regrow.models.logprobs):
            with pytest.raises(ValueError, match=f"{DROPPED}.*Attention was called without it"):
                function(model, tree)
        model(input_ids=tree.tokens[None])  # without a tree it runs on
    with pytest.raises(ValueError, match=DROPPED):
        call(model, tree)
    with pytest.raises(ValueError, match=f"Model {DROPPED}"):
        call(model.model, tree)


# One layer of several, as in families whose layers differ.
@pytest.mark.parametrize("switch", [switched, attached])
def test_one_layer_that_keeps_the_tree_to_itself(tree, switch):
    model = switch(make_model("llama"))
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *arguments, tree, **options: forward(*arguments, **options)
    with pytest.raises(ValueError, match=f"{DROPPED}.*LlamaAttention was called without it"):
        regrow.models.packed(model, tree)


@pytest.mark.parametrize("switch", [switched, attached])
def test_attention_that_bypasses_the_interface(tree, switch):
    model = switch(make_model("llama"))
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **options: (hidden_states, None)
    with pytest.raises(ValueError, match=f"LlamaForCausalLM {DROPPED}.*no layer called regrow's attention"):
        regrow.models.packed(model, tree)


class Stop(BaseException):
    """As KeyboardInterrupt, after which modules run no hooks."""


@pytest.mark.parametrize("error", [RuntimeError, Stop])
@pytest.mark.parametrize("switch", [switched, attached])
def test_a_call_that_fails_leaves_no_tree_behind(tree, switch, error):
    model = switch(make_model("llama"))
    expected = regrow.models.packed(model, tree).logits

    def fail(*_):
        raise error

    handle = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        regrow.models.packed(model, tree)
    handle.remove()
    model(input_ids=tree.tokens[None])
    assert RUNNING.call is None
    assert torch.equal(regrow.models.packed(model, tree).logits, expected)


def test_another_model_runs_without_a_tree_meanwhile(model, tree):
    reference = attached(copy.deepcopy(model))
    seen = []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(reference(input_ids=tree.tokens[None])))
    regrow.models.packed(attached(model), tree)
    assert len(seen) == 1


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_run_layers_again_after_the_call(model, tree, use_reentrant):
    regrow.models.logprobs(attached(model), tree).sum().backward()
    expected = model.model.layers[0].mlp.up_proj.weight.grad.clone()
    model.zero_grad()
    model.train().gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    regrow.models.logprobs(model, tree).sum().backward()
    torch.testing.assert_close(model.model.layers[0].mlp.up_proj.weight.grad, expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_compiled_layers(tree):
    for switch in (attached, switched):
        model = switch(make_model("llama"))
        expected = regrow.models.packed(model, tree).logits
        for layer in model.model.layers:
            layer.compile(backend="eager")
        for _ in range(2):
            torch.testing.assert_close(regrow.models.packed(model, tree).logits, expected, rtol=1e-12, atol=1e-12)
        model(input_ids=tree.tokens[None])


@torch.no_grad()
def test_a_compiled_model_that_keeps_the_tree_to_itself(tree):
    compiled = torch.compile(attached(make_model("stablelm")), backend="eager")
    for function in (regrow.models.packed, call):
        with pytest.raises((ValueError, torch._dynamo.exc.TorchDynamoException), match=DROPPED):
            function(compiled, tree)
        assert RUNNING.call is None
