"""The examples in docs/rollout.md run as they stand there."""

import re
from pathlib import Path

import torch

import regrow.models
from model_families import make_model
from regrow import rollout

DOCS = Path(__file__).resolve().parents[2] / "docs" / "rollout.md"
PROMPTS = [[5, 6, 7, 8], [5, 6, 9], [5, 6, 7, 8]]


def blocks():
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)


def test_sample_and_train():
    model = make_model("llama", dtype=torch.float32, implementation="sdpa", eos_token_id=3)
    names = {"regrow": regrow, "model": model, "prompts": PROMPTS, "reward": lambda response: float(len(response) % 2)}
    exec(blocks()[0], names)
    sampled = names["sampled"]
    assert len(sampled.sequences) == 12
    assert any(parameter.grad.norm() > 0 for parameter in model.parameters())
    differences = torch.cat(sampled.old_logprobs) - sampled.tree.unpack(regrow.replay.logprobs(model, sampled.tree))
    assert differences[torch.cat(sampled.masks)].abs().max() < 1e-4


def test_a_drafter():
    model = regrow.models.attach(make_model("llama", dtype=torch.float32))
    names = {"rollout": rollout, "model": model, "prompts": PROMPTS}
    exec(blocks()[1], names)
    assert names["sampled"].stats.drafted > 0
