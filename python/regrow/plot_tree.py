"""The picture of a `PrefixTree`: what is shared on the left, who sees whom on the right."""

import numpy as np

_BLOCKS = 512  # the mask is drawn at this resolution at most, whatever the size of the tree
_MAX_NODES = 4096  # of more nodes, those on the same cells of a grid are drawn once
_GRID = 512
_MAX_LABELS = 48
_LABEL_SHARE = 0.03  # of an axis: smaller rectangles get no label


def plot(tree, path):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install regrow[plot]") from error

    figure = Figure(figsize=(13, 6), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_tree(tree, figure, left)
    _draw_mask(tree, right)
    figure.savefig(path, format="png")


def node_rectangles(tree):
    """(first leaf, leaves below, depth, length) of every node, int64 [num_nodes] each."""
    start = tree.node_start.cpu().numpy()
    begin, length = start[:-1], np.diff(start)
    end = tree.host_subtree_end.numpy()[begin]
    leaves_before = np.concatenate([[0], np.cumsum(end == start[1:])])
    below = leaves_before[np.searchsorted(start, end)] - leaves_before[:-1]
    return leaves_before[:-1], below, tree.host_position_ids.numpy()[begin], length


def mask_density(tree, blocks=_BLOCKS):
    """Share of visible pairs per (query block, key block), and the number of tokens in a block; linear in T.

    A key's queries are one range, so it adds its full height to the whole blocks inside (as a difference that the
    running sum spreads) and a remainder to the blocks in which the range begins and ends.
    """
    num_tokens = tree.num_tokens
    size = max(1, -(-num_tokens // blocks))
    count = -(-num_tokens // size)
    begin, end = np.arange(num_tokens), tree.host_subtree_end.numpy().astype(np.int64)
    first, last, column = begin // size, end // size, begin // size
    cells = (count + 2) * count

    def add(row, weight=None):
        return np.bincount(row * count + column, weight, cells).reshape(count + 2, count)

    # Pairs of the range [0, end) minus pairs of [0, begin): `size` a row above the block that the bound is in.
    whole = np.cumsum(add(first) - add(last), 0) * size
    pairs = whole + add(last, end - last * size) - add(first, begin - first * size)
    rows = np.minimum(size, num_tokens - np.arange(count) * size)
    return pairs[:count] / (rows[:, None] * rows[None, :]), size


def _draw_tree(tree, figure, axes):
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm

    counts = (tree.num_sequences, "sequences"), (tree.num_nodes, "nodes"), (tree.num_tokens, "tokens")
    axes.set_title(", ".join(f"{count:,} {what}" for count, what in counts), fontsize=10)
    _label_axes(axes, "position on the path (tokens)", "leaves")
    if tree.num_tokens == 0:
        return
    leaf, below, depth, length = node_rectangles(tree)
    width, height = int((depth + length).max()), int((leaf + below).max())
    corners = np.stack([depth, leaf, depth + length, leaf + below], 1)
    if tree.num_nodes > _MAX_NODES:
        cell = np.array([width, height, width, height]) / _GRID
        corners = np.stack([*np.floor(corners[:, :2] / cell[:2]).T, *np.ceil(corners[:, 2:] / cell[2:]).T], 1)
        corners, kept = np.unique(corners, axis=0, return_index=True)
        corners, below_kept = corners * cell, below[kept]
    else:
        below_kept = below

    x0, y0, x1, y1 = corners.T
    # A single token under a long prompt must still be seen.
    x1 = np.where(below_kept == 1, np.maximum(x1, x0 + width / 64), x1)
    boxes = PolyCollection(
        np.stack([x0, y0, x1, y0, x1, y1, x0, y1], 1).reshape(-1, 4, 2), array=below_kept, cmap="YlGnBu",
        norm=LogNorm(1, max(2, height)), edgecolors="0.7", linewidths=1 if len(corners) <= 128 else 0,
    )  # fmt: skip
    axes.add_collection(boxes)
    axes.set_xlim(0, x1.max())
    axes.set_ylim(height, 0)
    ticks = np.unique(np.geomspace(1, max(2, height), 6).round())
    bar = figure.colorbar(
        boxes, ax=axes, label="leaves that share the node", shrink=0.8, ticks=ticks, format="{x:,.0f}"
    )
    bar.minorticks_off()
    for x, y, w, h in zip(depth, leaf, length, below, strict=True) if tree.num_nodes <= _MAX_LABELS else ():
        if w >= _LABEL_SHARE * width and h >= _LABEL_SHARE * height:
            box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
            axes.text(x + w / 2, y + h / 2, f"{w:,}", ha="center", va="center", fontsize=8, bbox=box)


def _draw_mask(tree, axes):
    _label_axes(axes, "key (axis position)", "query (axis position)")
    if tree.num_tokens == 0:
        return
    density, size = mask_density(tree)
    axes.set_title(f"mask: {tree.attention_pairs()[0] / tree.num_tokens**2:.2%} of all pairs are visible", fontsize=10)
    # What is seen at all must not fade to white: any visible pair starts well up the scale.
    shade = np.where(density > 0, 0.4 + 0.6 * density, 0)
    extent = (0, density.shape[1] * size, density.shape[0] * size, 0)
    axes.imshow(shade, cmap="Blues", vmin=0, vmax=1.15, extent=extent, interpolation="nearest")
    axes.set_xlim(0, tree.num_tokens)
    axes.set_ylim(tree.num_tokens, 0)


def _label_axes(axes, x_label, y_label):
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
        axis.set_major_formatter("{x:,.0f}")
