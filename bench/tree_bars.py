"""How fast trees and plans are made, on one thread."""

from interleaved import interleave
from report import Row
from test_tree import WORKLOADS

import regrow

SEQUENCES, BRANCHES = "64 x 131,072 half shared, tensors", "65,536 x (16 + 1), tensors"


def run(rounds=5):
    """All rows of trees and plans."""
    rows = []
    for name, goal in ((SEQUENCES, 300), (BRANCHES, 100), ("from_nodes: 512 + 65,536 x 1", 100)):
        make_problem, convert = WORKLOADS[name]
        build, arguments = make_problem(convert)
        times = interleave({"regrow": lambda: build(*arguments)}, rounds)["regrow"]  # noqa: B023
        rows.append(Row("trees", name, times.median * 1e3, "ms", bar=goal, lower=True))

    tree = regrow.PrefixTree.from_nodes([-1] + [0] * 8, [2_097_152 - 8 * 8192] + [8192] * 8)

    def make_plan():
        tree.plans.clear()
        regrow.plan(tree, query_heads=8, kv_heads=2)

    times = interleave({"regrow": make_plan}, rounds)["regrow"]
    rows.append(
        Row("plans", f"one prompt, 8 x 8,192: {tree.num_tokens:,} tokens", times.median * 1e3, "ms", bar=50, lower=True)
    )
    return rows
