"""Plans: which tiles of a rectangle to compute, in which pieces and in which order, as one int32 tensor."""

import weakref

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from regrow._load import _C

# What each plan on CUDA was made for: there its words can't be read without waiting for the device.
_made_for = WeakTensorKeyDictionary()


def plan(
    tree, *, query_heads, kv_heads, head_dim=128, window=None, query_start=0, num_queries=None, query_index=None,
    key_start=0, num_keys=None,
):  # fmt: skip
    """The plan of a rectangle of the tree's axis, made on the host and kept by the tree unless it has a `query_index`.

    query_heads, kv_heads: of q and of k and v. head_dim: the larger of q's and v's; it matters on CUDA only. window:
    positions a query looks back, itself included, or None. Queries are the `num_queries` tokens from `query_start`, or
    those of `query_index` [Tq] (int64, sorted, on any device: one on an accelerator costs a synchronisation); keys are
    the `num_keys` tokens from `key_start`. The defaults are all tokens. Returns an int32 tensor on the tree's device:
    [words] on the CPU, [rows of a query tile, words] on CUDA, where a launch reads the shape and nothing else.

    Time is O(tokens + tiles + runs log tiles), where a run is a row of tiles that are all full or all partial.

    Raises ValueError for a rectangle that leaves the axis, a `query_index` that is not sorted or comes with another
    word on where the queries stand, and a window, heads or a chip that do not fit.

        plan = regrow.plan(tree, query_heads=8, kv_heads=2)
        out = regrow.tree_attention(q, k, v, tree, plan=plan)
    """
    check_places(query_index, query_start, num_queries)
    check_window(window)
    check_query_index(query_index)
    if query_index is None and num_queries is None:
        num_queries = tree.num_tokens - query_start
    if num_keys is None:
        num_keys = tree.num_tokens - key_start
    key = _key(tree, query_heads, kv_heads, head_dim, window, query_start, num_queries, key_start, num_keys)
    if window is not None and window <= 0:
        raise ValueError(f"window must be positive, or None for none, got {window}")
    if kv_heads <= 0 or query_heads <= 0 or query_heads % kv_heads:
        raise ValueError(f"the {query_heads} query heads must be a positive multiple of the {kv_heads} KV heads")
    if query_index is None and key in tree.plans:
        return tree.plans[key]
    rectangle = (
        tree.host_subtree_end.numpy(),
        tree.host_position_ids.numpy(),
        None if query_index is None else query_index.cpu().numpy(),
        query_start,
        0 if num_queries is None else num_queries,
        key_start,
        num_keys,
        window or 0,
        query_heads,
        kv_heads,
    )
    device = tree.subtree_end.device
    words = _words_for_cuda(rectangle, head_dim, device) if device.type == "cuda" else _C.build_cpu_plan(*rectangle)
    with torch.inference_mode(False):  # a tree outlives the rollout that makes its first plan
        made = torch.from_numpy(words).to(device)
    if type(made) is torch.Tensor:  # not the fake one of a tracer
        if device.type == "cuda":
            _made_for[made] = weakref.ref(tree.host_subtree_end)
        if query_index is None:
            tree.plans[key] = made
    return made


def _words_for_cuda(rectangle, head_dim, device):
    """[rows of the chosen configuration, words], padded to whole rows."""
    chip = torch.cuda.get_device_properties(device)
    capability = 10 * chip.major + chip.minor
    rows, words = _C.build_cuda_plan(*rectangle, head_dim, capability, chip.multi_processor_count)
    return np.pad(words, (0, -len(words) % rows)).reshape(rows, -1)


def check_plan(plan, tree):
    """Raises ValueError for a plan on CUDA that regrow.plan made for another tree; on the CPU the op reads the plan."""
    made_for = _made_for.get(plan) if plan.is_cuda else None
    if made_for is not None and made_for() is not tree.host_subtree_end:
        raise ValueError("the plan does not fit this call: it was made for another tree; make one with regrow.plan")


def check_places(query_index, query_start, num_queries=None):
    """Raises ValueError where an interval of queries comes beside `query_index`."""
    if query_index is not None and (query_start != 0 or num_queries is not None):
        raise ValueError(
            f"query_index already says where the queries stand: leave out query_start and num_queries, "
            f"got {query_start} and {num_queries}"
        )


def check_query_index(query_index):
    """Raises ValueError for a `query_index` that is no 1-D int64 tensor."""
    if query_index is not None and not (
        isinstance(query_index, torch.Tensor) and query_index.dtype == torch.int64 and query_index.dim() == 1
    ):
        raise ValueError(f"query_index must be a 1-D int64 tensor, got {_describe(query_index)}")


def check_window(window):
    """Raises ValueError for a window that is no whole number."""
    if window is not None and not isinstance(window, int) and not hasattr(window, "__index__"):
        raise ValueError(f"window must be a whole number of positions, or None for none, got {window}")


def cached_plan(tree, *, query_heads, kv_heads, head_dim, window, query_start, num_queries, key_start, num_keys):
    """The plan that the tree keeps for this rectangle, or None. Only attribute and dict reads, which compile."""
    key = _key(tree, query_heads, kv_heads, head_dim, window, query_start, num_queries, key_start, num_keys)
    return tree.plans.get(key)


def _describe(x):
    return f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__


def _key(tree, query_heads, kv_heads, head_dim, window, query_start, num_queries, key_start, num_keys):
    # Tiles depend on the heads of a group; on CUDA also on how many groups fill the chip and on the head dim's kernels.
    group = query_heads // max(kv_heads, 1)
    cuda = (kv_heads, head_dim) if tree.subtree_end.is_cuda else ()
    return (group, *cuda, window, query_start, num_queries, key_start, num_keys)
