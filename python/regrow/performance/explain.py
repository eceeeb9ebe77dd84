"""`regrow.explain`: what a call of tree_attention, or its backward, will do on a device, and what that costs."""

from dataclasses import dataclass

import torch

from regrow._load import _C
from regrow.performance import passes
from regrow.performance.backward import Backward, Work, predict_backward
from regrow.performance.chips import Chip, chip_of
from regrow.performance.forward import Forward, Shape, predict_forward
from regrow.performance.pairs import useful_pairs
from regrow.plans import check_places, check_query_index, check_window

_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Explanation:
    """What `explain` found. `str()` shows it as a table; `forward` or `backward` has all numbers, and none the CPU."""

    title: str
    device: str
    rows: int  # of a query tile: tokens times heads
    query_tile: int  # tokens
    heads_of_tile: int
    key_tile: int
    reason: str  # for this configuration
    items: int
    tiles: int
    partial_tiles: int
    pieces: int
    merges: int  # of the forward's pieces; the backward's add their sums in turn
    useful_pairs: int
    computed_pairs: int
    chip: Chip | None = None
    forward: Forward | None = None
    is_backward: bool = False
    backward: Backward | None = None

    def __str__(self):
        rows = [
            ("configuration", f"{self.rows} rows ({self.query_tile} queries x {self.heads_of_tile} heads), "
                              f"tiles of {self.key_tile} keys"),
            ("because", self.reason),
            ("tiles", f"{self.tiles:,}, {self.partial_tiles:,} of them masked"),
            ("work items", f"{self.items:,}, {self.pieces:,} of them pieces, {self._joined()}"),
            ("useful pairs", f"{self.useful_pairs:,} of {self.computed_pairs:,} computed ({self._share():.1%})"),
        ]  # fmt: skip
        f = self.forward or self.backward
        if f:
            waiting = f", {f.waiting:.0%} of it waiting for turns" if self.backward else ""
            rows += [
                ("waves", f"{f.waves:.2f}, multiprocessors busy {f.busy:.0%} of the time{waiting}"),
                ("floor", f"matmul {_time(f.floor_matmul)}, copy {_time(f.floor_copy)}"),
                ("predicted", f"{_time(f.predicted)}, {f.predicted / f.floor if f.floor else 1:.2f} x the floor, "
                              f"{f.tflops:,.0f} TFLOP/s, {f.moved_bytes / f.predicted / 1e9:,.0f} GB/s"),
                ("bound by", f.bound),
            ]  # fmt: skip
        if self.backward:
            rows.append(("two passes", f"{_time(f.two_passes)}, not built"))
        return "\n".join([self.title] + [f"  {name:<14}{text}" for name, text in rows])

    __repr__ = __str__

    def _joined(self):
        return "which add in turn" if self.is_backward else f"joined by {self.merges:,} merges"

    def _share(self):
        return self.useful_pairs / self.computed_pairs if self.computed_pairs else 1


def explain(
    tree, heads, head_dim, dtype, device, *, window=None, query_index=None, query_start=0, num_queries=None,
    key_start=0, num_keys=None, value_dim=None, partial=False, rows=None, backward=False,
):  # fmt: skip
    """What `tree_attention` computes for these arguments, in which tiles and pieces, and how long that should take.

    heads: (query_heads, kv_heads). head_dim: of q and k, and of v without `value_dim`. device: "H20", "H200", "H100",
    "A100", a CUDA device that is there, or "cpu", for which there are counts and no times. The rectangle is that of
    `regrow.plan`. partial: out is fp32. rows: of the query tiles; None takes what the planner takes. backward:
    the gradients of q, k and v instead, which have tiles of their own. Nothing is computed on the device, and none is
    needed for a name. The model: docs/performance.md.

    Returns an `Explanation`, which shows itself as a table. Raises ValueError for an unknown device, heads, dims and
    dtypes that have no kernel there, and what `regrow.plan` refuses.

        >>> tree = regrow.PrefixTree.from_nodes([-1] + [0] * 8, [32768] + [1024] * 8)
        >>> regrow.explain(tree, (32, 8), 128, torch.bfloat16, "H20").forward.bound
        'matmul'
    """
    query_heads, kv_heads = _check_heads(heads)
    _check_rectangle(window, query_index, query_start, num_queries)
    value_dim = head_dim if value_dim is None else value_dim
    axis = (tree.host_subtree_end.numpy(), tree.host_position_ids.numpy())
    index = None if query_index is None else query_index.cpu().numpy()
    num_queries = tree.num_tokens - query_start if num_queries is None else num_queries
    num_keys = tree.num_tokens - key_start if num_keys is None else num_keys
    rectangle = (*axis, index, query_start, num_queries, key_start, num_keys, window or 0)
    chip = None if str(device) == "cpu" else chip_of(device)
    if backward and rows:
        raise ValueError(f"rows is {rows}: the backward has one number of rows, leave them to the planner")
    if chip is None:
        words, heads_of_tile = _C.build_cpu_plan(*rectangle, *heads), query_heads // kv_heads
        reason = "about 256 rows of queries against 128 keys stay in a 1 MB L2"
    else:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype}: the CUDA kernels take torch.bfloat16 and torch.float16")
        widest = max(head_dim, value_dim)
        rows, words = _C.build_cuda_plan(
            *rectangle, *heads, widest, chip.compute_capability, chip.multiprocessors, rows or 0
        )
        heads_of_tile = _C.cuda_tiles(*heads, rows, chip.multiprocessors)[4]
        reason = _reason(widest, rows)

    positions = slice(query_start, query_start + num_queries) if index is None else index
    pairs = useful_pairs(*axis, positions, key_start, num_keys, window)
    title = (
        f"tree_attention on {chip.name if chip else 'the CPU'}: {_C.plan_work(words)['num_queries']:,} queries x "
        f"{num_keys:,} keys, {query_heads} / {kv_heads} heads of {head_dim}, {str(dtype).removeprefix('torch.')}"
    )
    shape = Shape(query_heads, kv_heads, head_dim, value_dim, dtype.itemsize, pairs)
    if backward:
        return _explain_backward(f"backward of {title}", words, shape, chip, 4 if partial else None)
    work, units = _C.plan_work(words), query_heads // heads_of_tile
    rows = rows if chip else work["query_tile"] * heads_of_tile
    tiles = int(work["item_tiles"].sum()) * units
    forward = None
    if chip:
        forward = predict_forward(words, shape, rows, chip, out_size=4 if partial else None)
    return Explanation(
        title=title,
        device=chip.name if chip else "cpu",
        rows=rows,
        query_tile=work["query_tile"],
        heads_of_tile=heads_of_tile,
        key_tile=work["key_tile"],
        reason=reason,
        items=int((work["item_tiles"] > 0).sum()) * units,
        tiles=tiles,
        partial_tiles=work["partial_tiles"] * units,
        pieces=int(work["merge_pieces"].sum()) * units,
        merges=len(work["merge_pieces"]) * units,
        useful_pairs=pairs * query_heads,
        computed_pairs=tiles * rows * work["key_tile"],
        chip=chip,
        forward=forward,
    )


def _explain_backward(title, words, shape, chip, out_size):
    work = Work(words, shape.query_heads, shape.kv_heads)
    # On the CPU a block takes all heads of a group.
    heads = work.heads_of_tile if chip else shape.query_heads // shape.kv_heads
    steps = int(work.lengths.sum()) * shape.query_heads // heads
    rows = work.tokens * heads
    return Explanation(
        title=title,
        device=chip.name if chip else "cpu",
        rows=rows,
        query_tile=work.tokens,
        heads_of_tile=heads,
        key_tile=work.keys,
        reason="a block keeps the sums of its keys and adds to those of queries in turn: five products, not seven",
        items=len(work.items) * shape.kv_heads,
        tiles=steps,
        partial_tiles=work.partial_tiles * shape.query_heads // heads,
        pieces=work.pieces,
        merges=0,
        useful_pairs=shape.useful_pairs * shape.query_heads,
        computed_pairs=steps * (passes.built(shape.head_dim).rows if chip else rows) * work.keys,
        chip=chip,
        is_backward=True,
        backward=predict_backward(words, shape, chip, out_size) if chip else None,
    )


def _check_rectangle(window, query_index, query_start, num_queries):
    check_places(query_index, query_start, num_queries)
    check_query_index(query_index)
    check_window(window)
    if window is not None and window <= 0:
        raise ValueError(f"window must be positive, or None for none, got {window}")


def _check_heads(heads):
    if not isinstance(heads, (tuple, list)) or len(heads) != 2:
        raise ValueError(f"heads must be (query_heads, kv_heads), got {heads}")
    query_heads, kv_heads = heads
    if kv_heads <= 0 or query_heads <= 0 or query_heads % kv_heads:
        raise ValueError(f"the {query_heads} query heads must be a positive multiple of the {kv_heads} KV heads")
    return query_heads, kv_heads


def _reason(head_dim, rows):
    found = [c for c in _C.forward_configurations() if c["head_dim"] >= head_dim and c["rows"] == rows]
    return min(found, key=lambda c: c["head_dim"])["reason"]


def _time(seconds):
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"
