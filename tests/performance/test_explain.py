"""`regrow.explain`: text, numbers, errors."""

import subprocess
import sys

import pytest
import torch

import regrow
from regrow import PrefixTree

TREE = PrefixTree.from_nodes([-1, 0, 0], [200, 30, 40])


def explain(device="H20", heads=(8, 2), head_dim=128, dtype=torch.bfloat16, tree=TREE, **options):
    return regrow.explain(tree, heads, head_dim, dtype, device, **options)


def test_text():
    shown = explain(rows=64)
    assert str(shown) == repr(shown)
    lines = str(shown).splitlines()
    assert lines[0] == "tree_attention on H20: 270 queries x 270 keys, 8 / 2 heads of 128, bfloat16"
    table = {line[2:16].strip(): line[16:] for line in lines[1:]}
    assert table["configuration"] == "64 rows (16 queries x 4 heads), tiles of 64 keys"
    assert "verification" in table["because"]
    assert table["tiles"] == f"{shown.tiles}, {shown.partial_tiles} of them masked"
    assert table["predicted"].startswith(f"{shown.forward.predicted * 1e6:,.0f} us")
    assert list(table)[3:] == ["work items", "useful pairs", "waves", "floor", "predicted", "bound by"]


def test_counts():
    shown = explain(rows=64)
    assert shown.tiles == 2 * len(pairs_of_tiles(16, 64))
    assert shown.useful_pairs == 8 * (
        200 * 201 // 2 + sum(201 + i for i in range(30)) + sum(201 + i for i in range(40))
    )
    assert shown.computed_pairs == shown.tiles * 64 * 64


def pairs_of_tiles(queries, keys):
    """Of TREE, from the mask."""
    end, n = TREE.subtree_end.tolist(), TREE.num_tokens
    return {(q // queries, k // keys) for q in range(n) for k in range(q + 1) if q < end[k]}


def test_the_cpu_has_counts_and_no_times():
    shown = explain("cpu", dtype=torch.float32)
    assert shown.forward is None and shown.chip is None
    assert (shown.rows, shown.key_tile) == (256, 128)
    assert "predicted" not in str(shown) and "on the CPU" in str(shown)
    assert str(explain(torch.device("cpu"))) == str(explain("cpu"))


def test_no_tokens():
    shown = explain(tree=PrefixTree.from_nodes([], []))
    assert shown.tiles == 0 and shown.forward.floor == 0 and "0 of 0 computed" in str(shown)


def test_a_head_dim_in_between_is_padded():
    shown = explain(head_dim=80)
    assert shown.forward.operations == 2 * shown.useful_pairs * 160
    assert shown.reason == explain(head_dim=128).reason


@pytest.mark.parametrize(
    "options, text",
    [
        ({"device": "B9"}, "no model of device 'B9': name A100, H100, H200, H20 or cpu, or give a CUDA device"),
        ({"heads": 8}, r"heads must be \(query_heads, kv_heads\), got 8"),
        ({"heads": (9, 2)}, "the 9 query heads must be a positive multiple of the 2 KV heads"),
        ({"head_dim": 320}, "the CUDA kernels take head dims up to 256, got 320"),
        ({"dtype": torch.float32}, "dtype is torch.float32: the CUDA kernels take torch.bfloat16 and torch.float16"),
        ({"rows": 32}, "no configuration for head dim 128 has 32 rows: leave them to the planner"),
        ({"window": 0}, "window must be positive, or None for none, got 0"),
        ({"window": 1.5}, "window must be a whole number of positions, or None for none, got 1.5"),
        ({"query_index": [1, 2]}, "query_index must be a 1-D int64 tensor, got list"),
        ({"query_index": torch.tensor([2, 1])}, "query_index must be sorted, but entry 1 is 1 after 2"),
        ({"query_start": 200, "num_queries": 100}, "100 queries from 200 leave the axis of 270 tokens"),
        ({"num_keys": 300}, "300 keys from 0 leave the axis of 270 tokens"),
    ],
)
def test_errors(options, text):
    with pytest.raises(ValueError, match=text):
        explain(**options)


def test_importing_regrow_does_not_load_the_model():
    code = """
import sys, regrow
assert "explain" in dir(regrow) and "regrow.performance" not in sys.modules
assert callable(regrow.explain)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_unknown_as_ever():
    with pytest.raises(AttributeError, match="module 'regrow' has no attribute 'explian'"):
        regrow.explian  # noqa: B018
