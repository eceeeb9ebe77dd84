"""The axis against transformers' own generation, and what sampling promises."""

import pytest
import torch

from regrow.demo import generate as module
from regrow.demo.generate import Axis, choose, generate

# Shared beginnings, equal prompts apart from each other, one the beginning of another.
PROMPTS = [[1, 5, 9, 2], [1, 5, 9, 7, 8], [1, 5, 9, 2], [1, 5, 9, 2, 4, 4], [3]]
NO_END = -1


@pytest.mark.parametrize("implementation", ["sdpa", "regrow"])
@torch.no_grad()
def test_greedy_is_transformers_greedy(model, implementation):
    model.set_attn_implementation(implementation)
    responses = generate(model, PROMPTS, max_new_tokens=6, end_token=model.config.eos_token_id, greedy=True)
    assert model.config._attn_implementation == implementation
    for prompt, response in zip(PROMPTS, responses, strict=True):
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0]
        assert response == whole[len(prompt) :].tolist()


@torch.no_grad()
def test_every_sampled_token_comes_from_its_own_path(model, monkeypatch):
    seen = []

    def remember(logits, greedy):
        seen.append(torch.log_softmax(logits, -1))
        return choose(logits, greedy)

    monkeypatch.setattr(module, "choose", remember)
    torch.manual_seed(0)
    responses = generate(model, PROMPTS, max_new_tokens=4, end_token=NO_END)
    order = Axis(PROMPTS, 4).slots[:, 0].argsort().tolist()
    for place, row in enumerate(order):
        sequence = torch.tensor(PROMPTS[row] + responses[row])
        logits = model(sequence[None]).logits[0, len(PROMPTS[row]) - 1 : -1]
        ours = torch.stack([step[place] for step in seen])
        torch.testing.assert_close(ours, torch.log_softmax(logits, -1), rtol=1e-4, atol=1e-5)


def test_a_response_ends_with_its_end_token(model, monkeypatch):
    tokens = iter([[0, 6, 6], [0, 7], [8]])
    monkeypatch.setattr(module, "choose", lambda logits, greedy: torch.tensor(next(tokens)))
    assert generate(model, [[1], [2], [3]], max_new_tokens=3, end_token=0) == [[0], [6, 0], [6, 7, 8]]


def test_nothing_is_computed_after_the_last_end(model, monkeypatch):
    monkeypatch.setattr(module, "choose", lambda logits, greedy: torch.zeros(len(logits), dtype=torch.long))
    assert generate(model, [[1], [2]], max_new_tokens=9, end_token=0) == [[0], [0]]


def test_sampling_follows_the_distribution():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.5, 0.0, 0.125, 0.375])
    drawn = choose(probabilities.log().expand(20_000, -1), greedy=False)
    share = torch.bincount(drawn, minlength=4) / 20_000
    assert share[1] == 0
    torch.testing.assert_close(share, probabilities, rtol=0, atol=0.015)
    assert choose(probabilities.log()[None], greedy=True).tolist() == [0]
