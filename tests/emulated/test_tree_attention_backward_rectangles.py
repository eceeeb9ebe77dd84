"""The backward of each kind of rectangle: chunks, ranges of keys, scattered queries, nothing to see, nothing."""

import pytest
import torch

from attention_cases import make_case
from backward_runs import forward, rounding_apart
from named_trees import conversation, empty, grpo_group, ragged
from regrow import PrefixTree

# The two kinds of configuration: warps that own 16 keys, and pairs of warps that share them.
DIMS = pytest.mark.parametrize("head_dim", [64, 256])


def _case(tree, head_dim=64, **more):
    shape = {"heads": (2, 1), "head_dim": head_dim, "value_dim": head_dim, "dtype": torch.bfloat16}
    return make_case(tree, **shape | more)


# Three query tiles and two key tiles or three; a chunk against its path; against keys of one tile, of a tile and one,
# of one panel and of less; keys that come after some queries; scattered queries, some twice, with gaps of more than a
# tile between them.
RECTANGLES = {
    "all": {},
    "chunk and its path": {"queries": (60, 100), "keys": (0, 100)},
    "chunk of one": {"queries": (77, 78), "keys": (0, 78)},
    "keys of one tile": {"queries": (90, 146), "keys": (10, 138)},
    "keys of a tile and one": {"queries": (100, 146), "keys": (10, 139)},
    "keys of a panel": {"queries": (0, 50), "keys": (16, 32)},
    "one key": {"queries": (20, 90), "keys": (20, 21)},
    "keys partly after the queries": {"queries": (20, 60), "keys": (0, 146)},
    "scattered": {"query_index": torch.tensor([0, 0, 5, 33, 34, 70, 100, 145, 145])},
    "scattered, some keys": {"query_index": torch.tensor([40, 41, 140]), "keys": (3, 120)},
    "scattered, window": {"query_index": torch.tensor([40, 55, 140]), "keys": (3, 146), "window": 9},
}


@DIMS
@pytest.mark.parametrize("rectangle", RECTANGLES)
def test_rectangles(rectangle, head_dim, backward):
    backward().check(_case(grpo_group(), head_dim, sinks=head_dim == 64, **RECTANGLES[rectangle]))


@pytest.mark.parametrize("stride", [7, 17, 67])
def test_scattered_queries_of_a_large_tree(stride, backward):
    tree = ragged(num_nodes=14)
    index = torch.arange(1, tree.num_tokens, stride)
    backward().check_once(_case(tree, dtype=torch.float16, query_index=index), turn=stride)


@DIMS
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_queries_that_see_nothing(partial, sinks, head_dim, backward):
    """Among others of their tile, and whole tiles of them: dq is 0, and of delta = -dlse the sink gets its part."""
    tree = PrefixTree.from_nodes([-1, -1], [40, 100])  # a query of the second root sees no key of the first
    case = _case(tree, head_dim, queries=(30, 130), keys=(0, 40), partial=partial, sinks=sinks and not partial)
    runner = backward()
    tiles = [tile for tile, _, _ in runner.plan(case).backward_tiles()]
    assert tiles == [0], "the last query tiles meet no key tile"
    ours = runner.check(case)
    assert (ours["dq"][10:] == 0).all() and (ours["dq"][:10] != 0).any()
    if case.sinks is None:
        return
    seeing = _case(tree, head_dim, queries=(30, 40), keys=(0, 40), sinks=True)
    for name in ("q", "dout", "dlse"):
        getattr(seeing, name).copy_(getattr(case, name)[..., :10] if name == "dlse" else getattr(case, name)[:10])
    for name in ("k", "v", "sinks"):
        getattr(seeing, name).copy_(getattr(case, name))
    expected = runner.once(seeing)["dsinks"] + case.dlse[:, 10:].float().sum(1)
    torch.testing.assert_close(ours["dsinks"], expected, rtol=1e-5, atol=1e-5)


NOTHING = {
    "no keys": (conversation(), {"keys": (7, 7)}),
    "no queries": (conversation(), {"queries": (7, 7)}),
    "neither": (conversation(), {"queries": (9, 9), "keys": (7, 7)}),
    "keys after the queries": (conversation(), {"queries": (0, 9), "keys": (20, 30)}),
    "empty tree": (empty(), {}),
    "no query index": (conversation(), {"query_index": torch.zeros(0, dtype=torch.int64)}),
}


@DIMS
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("nothing", NOTHING)
def test_nothing_to_do(nothing, sinks, head_dim, backward):
    tree, rectangle = NOTHING[nothing]
    ours = backward().check(_case(tree, head_dim, sinks=sinks, **rectangle))
    assert all((ours[name] == 0).all() for name in ("dq", "dk", "dv"))


@DIMS
def test_one_token(head_dim, backward):
    """Its only weight is 1, so dv is dout and dlse all that dk and dq get."""
    case = _case(PrefixTree.from_nodes([-1], [1]), head_dim)
    ours = backward().check(case)
    torch.testing.assert_close(ours["dv"][0, 0], case.dout[0].float().sum(0), rtol=2**-8, atol=2**-8)


# The keys in blocks that end within tiles and within panels; some queries see nothing of some; queries in two chunks.
@DIMS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"window": 30, "softcap": 3.0}], ids=str)
def test_rectangles_add_up_to_the_whole(options, dtype, head_dim, backward):
    """Each with the out and lse of all keys, into the same accumulators."""
    tree, queries = grpo_group(), (40, 110)
    whole = _case(tree, head_dim, dtype=dtype, queries=queries, **options)
    given, runner = forward(whole), backward()
    sums = {name: torch.zeros(getattr(whole, name[1:]).shape) for name in ("dq", "dk", "dv")}
    for turn, (first, last) in enumerate(((0, 30), (30, 101), (101, 146))):
        for begin, end in ((40, 75), (75, 110)):
            part = _case(tree, head_dim, dtype=dtype, queries=(begin, end), keys=(first, last), **options)
            rows, keys = slice(begin - 40, end - 40), slice(first, last)
            part.q, part.dout, part.dlse = whole.q[rows], whole.dout[rows], whole.dlse[:, rows]
            part.k, part.v = whole.k[keys], whole.v[keys]
            into = {"dq": sums["dq"][rows], "dk": sums["dk"][keys], "dv": sums["dv"][keys]}
            added = runner.once(part, {name: x[rows] for name, x in given.items()}, turn, into=into)
            for name, total in into.items():
                total.copy_(added[name])
    ours = runner.run(whole, given)
    for name, bound in rounding_apart(whole, given).items():
        assert ((ours[name].double() - sums[name].double()).abs() <= bound).all(), name
