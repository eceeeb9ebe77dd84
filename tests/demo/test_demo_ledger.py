from types import SimpleNamespace

import pytest
import torch

from regrow.demo.ledger import BUFFERS, Entry, entries, measure_ledger
from regrow.replay import Ledger

CHUNK = 5
PREDICTED = dict(
    weights=1000, gradients=900, kept_gradients=0, path_kv=50, path_kv_gradients=60, activations=300, logits=200,
    workspace=250, results=5,
)  # fmt: skip
STATS = SimpleNamespace(gradient_bytes=910, kv_bytes=50, kv_gradient_bytes=61)


pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_rest_is_the_peak_less_the_buffers():
    found = entries(Ledger(**PREDICTED), 1001, 1600, STATS)
    assert found["weights"] == Entry(1000, 1001)
    assert [found[name] for name in BUFFERS] == [Entry(900, 910), Entry(50, 50), Entry(60, 61)]
    assert found["logits"] == Entry(200, None)
    assert found["rest"] == Entry(300 + 250 + 5, 1600 - 910 - 50 - 61)
    assert found["total"] == Entry(900 + 50 + 60 + 300 + 250 + 5, 1600)


def test_buffers_that_are_not_there_at_the_peak_count_on_neither_side():
    found = entries(Ledger(**PREDICTED | dict(gradients=0, path_kv_gradients=0)), 1001, 600, STATS)
    assert found["gradients"] == found["path_kv_gradients"] == Entry(0, 0)
    assert found["rest"] == Entry(555, 550)


@pytest.mark.parametrize("chunk_tokens", [None, CHUNK])
def test_lines_that_are_measured_add_up(model, batch, chunk_tokens):
    model.set_attn_implementation("regrow")
    found = measure_ledger(model, batch, chunk_tokens)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert found["weights"].predicted == pytest.approx(found["weights"].measured, rel=1e-2)
    assert found["weights"].measured >= parameters
    assert sum(found[name].measured for name in (*BUFFERS, "rest")) == found["total"].measured
    assert found["path_kv"].predicted == found["path_kv"].measured > 0
    assert found["total"].predicted == pytest.approx(found["total"].measured, rel=0.05)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.autograd._profiler_enabled()
