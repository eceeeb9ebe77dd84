"""Rollouts where the model is: drafts, branches, windows and slices that change hands, against replay's log-probs."""

import pytest
import torch

import regrow.models
import regrow.replay
from model_families import make_model
from regrow.rollout import Strategy, generate

pytestmark = pytest.mark.gpu

PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3], [30, 31], [1, 2, 3, 9, 10, 11]]
NEW = 80  # beyond the room that a window's axis has
WAYS = {"plain": {}, "trees, three at once": dict(drafter="suffix", strategy=Strategy(4, 2, 8), max_batch=3)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss"])
def test_log_probs_are_those_of_replay(device, family, way):
    # bf16 moves a log-prob of these models by some 1e-2; keys in a wrong place, or of another sequence, by 1 and more.
    model = regrow.models.attach(make_model(family, dtype=torch.bfloat16).to(device))
    rollout = generate(model, PROMPTS, 2, max_new_tokens=NEW, seed=3, **WAYS[way])
    assert [len(response) for response in rollout.responses()] == [NEW] * 10
    replayed = regrow.replay.logprobs(model, rollout.tree)
    ours, mask = rollout.on_axis(rollout.logprobs), rollout.response_mask
    assert (ours - replayed)[mask].abs().mean() < 0.05
    assert rollout.stats.kv_bytes <= rollout.stats.predicted_kv_bytes
