"""The examples in docs/replay.md run as they stand there."""

import re
from pathlib import Path

import torch

import regrow.models
from model_families import make_model, relative_l2
from regrow import replay

DOCS = Path(__file__).resolve().parents[2] / "docs" / "replay.md"
SEQUENCES = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 12, 13], [5, 6, 7, 8, 9, 14, 15, 16], [5, 6, 7, 8, 17]]


def blocks():
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)


def test_the_update():
    model = make_model("llama", dtype=torch.float32, implementation="sdpa")
    names = {
        "torch": torch,
        "regrow": regrow,
        "model": model,
        "sequences": SEQUENCES,
        "rewards": [1.0, 0.0, 0.5, 0.0],
        "group": 4,
        "response_mask": torch.cat([torch.arange(len(sequence)) >= 4 for sequence in SEQUENCES]),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    before = [parameter.clone() for parameter in model.parameters()]
    exec(blocks()[0], names)
    assert names["result"].loss.isfinite() and not any(map(torch.equal, before, model.parameters()))


def test_the_plain_module():
    names = {"torch": torch, "replay": replay}
    exec(blocks()[1], names)
    torch.manual_seed(0)
    model = names["Policy"]()
    tree = regrow.PrefixTree.from_sequences(SEQUENCES)

    def objective(logp, tree, entropy):
        return (logp * torch.arange(tree.num_tokens)).sum()

    gradients = []
    for chunk_tokens in (2, 100):
        replay.backward(model, tree, objective, chunk_tokens=chunk_tokens)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        model.zero_grad()
    assert relative_l2(*gradients) < 1e-5
