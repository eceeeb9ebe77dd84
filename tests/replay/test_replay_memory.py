"""Peak memory: flat in branches; in length, the path's own keys, values and gradients, and results."""

import pytest
import torch

import regrow.models
import regrow.replay
from model_families import make_model
from policy import random_tree
from regrow.live_bytes import peak_bytes
from replay_objectives import Additive

CHUNK = 256  # of which all segments are full, so that their activations are the same
SMALL = dict(hidden_size=64, intermediate_size=128, head_dim=16)


class Scored(Additive):
    """Looks at responses only."""

    def where(self, tree):
        return tree.position_ids >= CHUNK


def make_llama():
    return regrow.models.attach(make_model("llama", dtype=torch.float32, max_position_embeddings=2048, **SMALL))


def replayed(group, response, **options):
    """Peak bytes of an update less those of its path and of the results [T], and its stats."""
    model = make_llama()
    tree = random_tree([-1] + [0] * group, [CHUNK] + [response] * group)
    objective = Scored(tree)
    result, peak = peak_bytes(lambda: regrow.replay.backward(model, tree, objective, chunk_tokens=CHUNK, **options))
    stats = result.stats
    assert stats.segments == 1 + group * response // CHUNK
    results = result.logprobs.nbytes + result.entropy.nbytes  # 8 bytes a token, both fp32
    return peak - stats.kv_bytes - stats.kv_gradient_bytes - results, stats


@pytest.mark.parametrize("prefix_grad", ["exact", "detached"])
def test_memory_is_flat(prefix_grad):
    few, one = replayed(2, CHUNK, prefix_grad=prefix_grad)
    many, other = replayed(8, CHUNK, prefix_grad=prefix_grad)
    assert one.kv_bytes == other.kv_bytes and one.kv_gradient_bytes == other.kv_gradient_bytes
    assert many <= 1.003 * few
    long, stats = replayed(2, 4 * CHUNK, prefix_grad=prefix_grad)
    assert stats.capacity_tokens == 5 * CHUNK and stats.kv_bytes == 5 / 2 * one.kv_bytes
    assert long <= 1.003 * few


def test_what_it_is_flat_against():
    """The whole tree at once takes more with every branch."""
    peaks = []
    for group in (2, 8):
        model, tree = make_llama(), random_tree([-1] + [0] * group, [CHUNK] + [CHUNK] * group)

        def update(model=model, tree=tree):
            logp, entropy = regrow.models.logprobs(model, tree, return_entropy=True)
            Additive(tree)(logp, tree, entropy).backward()

        peaks.append(peak_bytes(update)[1])
    assert peaks[1] > 2.5 * peaks[0]
