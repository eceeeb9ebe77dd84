"""What would end in a wrong number is a ValueError before any work, and says what would be right."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import regrow.models
import regrow.replay
from model_families import make_model, make_tree
from policy import VOCABULARY, Policy, random_tree
from regrow import PrefixTree


def total(logp, tree, entropy):
    return logp.sum()


def refused(text, error=ValueError):
    return pytest.raises(error, match=text)


@pytest.fixture
def policy():
    return Policy()


@pytest.fixture
def tree():
    return random_tree([-1, 0, 0], [6, 4, 5])


@pytest.fixture
def llama():
    return regrow.models.attach(make_model("llama"))


@pytest.mark.parametrize("chunk_tokens", [0, -1, True, 1.5, "8", None])
def test_chunks(policy, tree, chunk_tokens):
    for call in (regrow.replay.logprobs, lambda *a, **o: regrow.replay.backward(*a, total, **o)):
        with refused(f"chunk_tokens is {chunk_tokens}: give a whole number of tokens, 1 or more"):
            call(policy, tree, chunk_tokens=chunk_tokens)


def test_whole_numbers_of_any_type(policy, tree):
    chunk_tokens = tree.cu_seqlens.numpy()[1]
    assert regrow.replay.backward(policy, tree, total, chunk_tokens=chunk_tokens).stats.segments == 2


def test_prefix_grad(policy, tree):
    with refused("prefix_grad is 'exakt': use one of 'exact', 'detached'"):
        regrow.replay.backward(policy, tree, total, prefix_grad="exakt")


def test_models(tree):
    with refused("the model is a function: give a transformers causal LM or an nn.Module"):
        regrow.replay.logprobs(total, tree)
    with refused("there is no transformers model in this Linear"):
        regrow.replay.logprobs(nn.Linear(2, 2), tree)


def test_the_protocol_must_be_filled_in(tree):
    module = regrow.replay.Replayable()
    with refused("Replayable must say how it computes hidden states: replay_hidden", NotImplementedError):
        module.replay_hidden(None)
    with refused("Replayable must give its head: replay_head", NotImplementedError):
        regrow.replay.logprobs(module, tree)


def test_another_attention():
    with refused("attention implementation 'eager' ignores tree=: call regrow.models.attach"):
        regrow.replay.logprobs(make_model("llama"), make_tree())


def test_a_compiled_model(llama):
    with refused("the whole model is compiled, and its hidden states cannot be had"):
        regrow.replay.logprobs(torch.compile(llama), make_tree())


def test_a_head_that_is_more_than_a_product(llama):
    llama.lm_head = nn.Linear(32, 64, dtype=torch.float64)
    with refused("the LM head has a bias"):
        regrow.replay.logprobs(llama, make_tree())


def test_a_loss_of_the_router():
    model = regrow.models.attach(make_model("qwen3-moe", output_router_logits=True, router_aux_loss_coef=0.1))
    with refused(r"load-balancing loss \(coefficient 0.1\) is no function of log-probs.*router_aux_loss_coef = 0.0"):
        regrow.replay.backward(model, make_tree(), total)
    model.config.router_aux_loss_coef = 0.0
    regrow.replay.backward(model, make_tree(), total)


def test_trees(policy):
    with refused("the tree has no tokens to give the model: give from_nodes its tokens"):
        regrow.replay.logprobs(policy, PrefixTree.from_nodes([-1], [3]))
    with refused("the tree holds token 13, the model's vocabulary has 13: they were made by different tokenizers"):
        regrow.replay.logprobs(policy, PrefixTree.from_sequences([[1, 2, VOCABULARY]]))


def test_devices(policy, tree):
    with refused(r"the tree is on meta, the model's head on cpu: use tree.to\(device\)"):
        regrow.replay.logprobs(policy, tree.to("meta"))


def test_inference_mode(policy, tree):
    with torch.inference_mode(), refused("inference_mode forbids: use torch.no_grad"):
        regrow.replay.logprobs(policy, tree)
    with torch.no_grad():  # which changes nothing
        regrow.replay.backward(policy, tree, total)
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_nothing_to_train(policy, tree):
    policy.requires_grad_(False)
    regrow.replay.logprobs(policy, tree)
    with refused("no parameter of the model requires a gradient: call requires_grad_"):
        regrow.replay.backward(policy, tree, total)


# How modules keep their rates: a module of torch, one with a functional dropout, a router's noise, skipped layers.
def keep(name, rate):
    def change(policy):
        setattr(policy.layers[0], name, rate)

    return change


def dropout(policy):
    policy.layers[0].mlp.append(nn.Dropout(0.1))


RANDOM = {
    "nn.Dropout": (dropout, "layers.0.mlp.3"),
    "attention_dropout": (keep("attention_dropout", 0.1), "layers.0"),
    "jitter_noise": (keep("jitter_noise", 0.1), "layers.0"),
    "layerdrop": (keep("layerdrop", 0.1), "layers.0"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_modules(policy, tree, name):
    change, place = RANDOM[name]
    change(policy)
    with refused(rf"^{place} drops or disturbs values at random \(rate 0.1\) in train mode.*or call model.eval\(\)"):
        regrow.replay.backward(policy, tree, total)
    regrow.replay.backward(policy.eval(), tree, total)


def test_a_rate_of_zero(policy, tree):
    keep("attention_dropout", 0.0)(policy)
    policy.layers[0].mlp.append(nn.Dropout(0.0))
    regrow.replay.backward(policy, tree, total)


def test_hooks_on_gradients(policy, tree):
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        handle = getattr(policy.head.weight, register)(lambda _: None)
        with refused("parameter head.weight has a gradient hook, which would run after every segment and not once"):
            regrow.replay.backward(policy, tree, total)
        handle.remove()
    regrow.replay.backward(policy, tree, total)


@pytest.fixture
def process_group():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel(llama, process_group):
    parallel, tree = DistributedDataParallel(llama), make_tree()
    for model in (parallel, nn.ModuleList([parallel])):  # within another wrapper too
        with refused(r"DistributedDataParallel would reduce gradients after every segment: .* under model.no_sync\(\)"):
            regrow.replay.backward(model, tree, total)
    with parallel.no_sync():
        regrow.replay.backward(parallel, tree, total, chunk_tokens=5)
    reduced = [parameter.grad.clone() for parameter in llama.parameters()]
    llama.zero_grad()
    regrow.replay.backward(llama, tree, total, chunk_tokens=5)
    assert all(torch.equal(a, p.grad) for a, p in zip(reduced, llama.parameters(), strict=True))


def test_no_rank_waits_for_another(llama, process_group, monkeypatch):
    """A rank whose part has nothing to run makes no collective call; so the others may make none."""
    parallel, tree = DistributedDataParallel(llama), make_tree()
    monkeypatch.setattr(parallel, "_sync_buffers", lambda: pytest.fail("buffers are sent"))
    regrow.replay.logprobs(parallel, tree, chunk_tokens=5)
    with parallel.no_sync():
        regrow.replay.backward(parallel, tree, total, chunk_tokens=5)


# What objectives return that is no loss.
NO_LOSS = {
    "a vector": (lambda logp: logp, r"a tensor of shape \["),
    "a number of Python's": (lambda logp: 1.5, "float"),
    "nothing": (lambda logp: None, "NoneType"),
}


@pytest.mark.parametrize("name", NO_LOSS)
def test_objectives_that_return(policy, tree, name):
    give, described = NO_LOSS[name]

    class InParts:
        def on_tokens(self, logp, tree, entropy, index):
            return give(logp)

    for objective in (lambda logp, tree, entropy: give(logp), InParts()):
        with refused(f"the objective must return one number, got {described}"):
            regrow.replay.backward(policy, tree, objective, chunk_tokens=4)
    assert all(parameter.grad is None for parameter in policy.parameters())


# Another length, integers for booleans, no tensor.
@pytest.mark.parametrize(
    ("where", "got"),
    [
        (torch.ones(3, dtype=torch.bool), r"torch.bool of shape \[3\]"),
        (torch.ones(15, dtype=torch.int64), r"torch.int64 of shape \[15\]"),
        ([True] * 15, "list"),
    ],
)
def test_where(policy, tree, where, got):
    class Partly:
        def where(self, tree):
            return where

        def __call__(self, logp, tree, entropy):
            return logp.sum()

    with refused(rf"what objective.where gives must be a boolean tensor of shape \[15\], got {got}"):
        regrow.replay.backward(policy, tree, Partly())
    with refused(rf"^where must be a boolean tensor of shape \[15\], got {got}"):
        regrow.replay.logprobs(policy, tree, where=where)


def test_temperature(policy, tree):
    with refused("temperature is 0.0, must be positive and finite"):
        regrow.replay.backward(policy, tree, total, temperature=0.0)
    assert all(parameter.grad is None for parameter in policy.parameters())
