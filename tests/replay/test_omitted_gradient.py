import pytest
import torch

from model_families import make_model, make_tree
from regrow import replay
from regrow.models import attach
from regrow.replay.omitted import kind_of

CHUNK_TOKENS = 4


def objective(logp, tree, entropy):
    return (logp * torch.linspace(-1, 2, logp.numel(), dtype=logp.dtype)).sum()


@pytest.fixture
def model():
    return attach(make_model("llama"))


def test_norms_and_cosine_are_those_of_the_two_gradients(model):
    tree, gradients = make_tree(), {}
    for kind in ("exact", "detached"):
        replay.backward(model, tree, objective, chunk_tokens=CHUNK_TOKENS, prefix_grad=kind)
        gradients[kind] = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad()
    parts = replay.omitted_gradient(model, tree, objective, chunk_tokens=CHUNK_TOKENS)
    for part in parts:
        exact, detached = (
            torch.cat([g.flatten() for name, g in gradients[kind].items() if part.family in (kind_of(name), "all")])
            for kind in ("exact", "detached")
        )
        assert part.num_parameters == exact.numel()
        assert part.exact == pytest.approx(exact.norm().item())
        assert part.detached == pytest.approx(detached.norm().item())
        assert part.omitted == pytest.approx((exact - detached).norm().item())
        assert part.cosine == pytest.approx(torch.cosine_similarity(exact, detached, dim=0).item())
        assert part.relative == part.omitted / part.exact
    assert parts[-1].family == "all" and 0.01 < parts[-1].relative < 10


def test_a_tree_in_one_segment_omits_nothing(model):
    parts = replay.omitted_gradient(model, make_tree(), objective, chunk_tokens=1000)
    assert all(part.omitted == 0 for part in parts)
    assert all(part.cosine == pytest.approx(1) for part in parts if part.exact)


def test_gradients_stay_as_they_are(model):
    before = {}
    for name, parameter in model.named_parameters():
        if "mlp" in name:
            before[name] = parameter.grad = torch.ones_like(parameter)
    replay.omitted_gradient(model, make_tree(), objective, chunk_tokens=CHUNK_TOKENS)
    for name, parameter in model.named_parameters():
        assert parameter.grad is before.get(name)
        assert parameter.grad is None or (parameter.grad == 1).all()


def test_families():
    assert kind_of("model.layers.11.mlp.experts.3.up_proj.weight") == "model.layers.*.mlp.experts.*.up_proj.weight"
    assert kind_of("lm_head.weight") == "lm_head.weight"


def test_family_of_the_callers(model):
    parts = replay.omitted_gradient(model, make_tree(), objective, family=lambda name: "norm" in name)
    assert [part.family for part in parts] == [False, True, "all"]
