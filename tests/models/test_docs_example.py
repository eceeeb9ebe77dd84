"""The loop in docs/models.md runs as it stands there."""

import re
import types
from pathlib import Path

import torch

import regrow.models
from model_families import make_model

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_loop():
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "optimizer" in block]
    assert len(code.splitlines()) == 15

    torch.manual_seed(0)
    names = {
        "torch": torch,
        "regrow": regrow,
        "model": make_model("llama", dtype=torch.float32, implementation="sdpa"),
        "tokenizer": types.SimpleNamespace(eos_token_id=7),
        "prompts": [(torch.tensor([[0, 0, 5, 6, 8]]), torch.tensor([[0, 0, 1, 1, 1]]))] * 2,
        "reward": lambda batch: (batch == 9).sum(1).float() + torch.arange(8),
    }
    names["model"].generation_config.eos_token_id = 7
    before = [parameter.clone() for parameter in names["model"].parameters()]
    exec(code, names)

    assert names["loss"].isfinite() and not any(map(torch.equal, before, names["model"].parameters()))
    tree, real = names["tree"], names["prompt"] | names["response"]
    assert torch.equal(tree.padded_index >= 0, real) and tree.num_tokens < real.sum()
    ends = (names["batch"][:, 5:] == 7).any(1)
    last = names["batch"].gather(1, (real * torch.arange(real.size(1))).argmax(1, keepdim=True))[:, 0]
    assert ends.any() and (last[ends] == 7).all()  # the end of a response counts, what follows does not


def test_its_log_probs_are_those_of_the_padded_batch():
    model = make_model("llama", dtype=torch.float32, implementation="sdpa")
    ids = torch.tensor([[0, 0, 5, 6, 8, 9], [0, 5, 6, 8, 3, 4], [5, 6, 8, 3, 2, 0]])
    mask = ids != 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask.long(), position_ids=positions).logits
    expected = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    tree = regrow.PrefixTree.from_padded(ids, mask)
    logp = tree.to_padded(regrow.models.logprobs(regrow.models.attach(model), tree))
    predicted = mask[:, 1:] & mask[:, :-1]
    torch.testing.assert_close(logp[:, 1:][predicted], expected[predicted], rtol=1e-4, atol=1e-5)
    assert logp[~mask].eq(0).all()
