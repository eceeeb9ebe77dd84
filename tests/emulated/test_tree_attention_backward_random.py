"""The backward of random calls: what no list of cases thinks of together."""

import random

import pytest
import torch

from attention_cases import make_case
from named_trees import ragged


def random_call(seed):
    rng = random.Random(seed)
    tree = ragged(num_nodes=rng.randint(1, 9), longest=rng.choice([3, 20, 60]), seed=seed)
    kv_heads = rng.choice([1, 1, 2])
    call = {
        "tree": tree,
        "dtype": rng.choice([torch.bfloat16, torch.float16]),
        "heads": (kv_heads * rng.choice([1, 2, 3, 5]), kv_heads),
        "head_dim": 8 * rng.choice([1, 5, 8, 9, 16, 18, 32]),
        "value_dim": 8 * rng.choice([1, 7, 8, 12, 16, 20, 32]),
        "window": rng.choice([None, None, rng.randint(1, tree.num_tokens)]),
        "softcap": rng.choice([None, None, rng.uniform(0.5, 20)]),
        "sinks": rng.random() < 0.5,
        "keys": _range(rng, tree),
        "seed": seed,
    }
    if rng.random() < 0.3:
        index = sorted(rng.choices(range(tree.num_tokens), k=rng.randint(1, 70)))
        call["query_index"] = torch.tensor(index)
    else:
        call["queries"] = _range(rng, tree)
    if not call["sinks"]:
        call["partial"] = rng.random() < 0.5
    return call


def _range(rng, tree):
    """All of the axis, or a part."""
    first, last = sorted(rng.choices(range(tree.num_tokens + 1), k=2))
    return rng.choice([(0, tree.num_tokens), (first, last)])


@pytest.mark.parametrize("seed", range(36))
def test_random_calls(seed, backward):
    backward(multiprocessors=1 + seed % 3).check_once(make_case(**random_call(seed)), turn=seed)
