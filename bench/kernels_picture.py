"""The picture of docs/kernels.md: a small tree's tiles, from its plan, and the steps of one block.

python bench/kernels_picture.py [--out docs/kernels.png]
"""

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch, Rectangle

import regrow
from regrow._load import _C

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from plan_decoder import Plan

SKIPPED, PARTIAL, FULL = 0, 1, 2
COLORS = {SKIPPED: "#f3f3f3", PARTIAL: "#f2c14e", FULL: "#4d7ea8"}
LANES = {"copies": "#9ec1cf", "tensor cores": "#4d7ea8", "other units": "#f2c14e", "memory": "#e07a5f"}
# A prompt, two responses that fork once more, and one that does not: nothing ends at the end of a tile.
TREE = ([-1, 0, 1, 1, 0], [420, 150, 170, 130, 190])


def plans():
    """Forward and backward plans for head dim 128 and one head, on 132 multiprocessors of sm_90."""
    tree = regrow.PrefixTree.from_nodes(*TREE)
    axis = tree.host_subtree_end.numpy(), tree.host_position_ids.numpy()
    size = tree.num_tokens
    rows = 128  # of the configuration
    _, words = _C.build_cuda_plan(*axis, None, 0, size, 0, size, 0, 1, 1, 128, 90, 132, rows)
    forward = Plan(words)
    return tree, forward, forward.of_backward


def kinds(tiles, header):
    """[query tiles, key tiles] of SKIPPED, PARTIAL, FULL."""
    grid = np.zeros((header.num_query_tiles, header.num_key_tiles), int)
    for query_tile, key_tile, partial in tiles:
        grid[query_tile, key_tile] = PARTIAL if partial else FULL
    return grid


def draw_tiles(axes, tree, header, grid, title):
    for (i, j), kind in np.ndenumerate(grid):
        corner = j * header.key_tile, i * header.query_tile
        axes.add_patch(
            Rectangle(corner, header.key_tile, header.query_tile, facecolor=COLORS[kind], edgecolor="white", lw=1)
        )
    size = tree.num_tokens
    end = tree.host_subtree_end.numpy()
    for start in tree.node_start[:-1].tolist():  # what each node's first key is seen by
        axes.plot([start, start], [start, end[start]], color="#1b3a57", lw=1)
        axes.plot([start, size], [start, start], color="#1b3a57", lw=0.3)
    axes.plot([0, size], [0, size], color="#1b3a57", lw=0.8)
    axes.set_xlim(0, size)
    axes.set_ylim(size, 0)
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("keys", fontsize=8)
    axes.set_ylabel("queries", fontsize=8)
    axes.tick_params(labelsize=7)


def number(axes, header, i, j, text):
    place = (j + 0.5) * header.key_tile, (i + 0.5) * header.query_tile
    axes.text(*place, text, ha="center", va="center", fontsize=7, color="black", fontweight="bold")


def frame(axes, header, rows, columns):
    (i0, i1), (j0, j1) = rows, columns
    size = (j1 - j0) * header.key_tile, (i1 - i0) * header.query_tile
    corner = j0 * header.key_tile, i0 * header.query_tile
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="#e07a5f", lw=2.2, zorder=5))


# (lane, from, to, text) of a step; a barrier is (time, text). Not to scale.
FORWARD = (
    [
        ("tensor cores", 0, 3, "$S = Q K_j^T$"), ("copies", 0.15, 4.6, "$V_j$"), ("other units", 3, 5, "mask, softmax"),
        ("tensor cores", 5.2, 8.2, "out += $P V_j$"), ("copies", 5.35, 8.0, "$K_{j+1}$"),
        ("tensor cores", 8.4, 11.4, "$S = Q K_{j+1}^T$"), ("copies", 8.55, 13.0, "$V_{j+1}$"),
        ("other units", 11.4, 13.4, "softmax"), ("tensor cores", 13.6, 16.6, "out += $P V_{j+1}$"),
        ("copies", 13.75, 16.4, "$K_{j+2}$"),
    ],
    [(0, "$K_j$ here"), (5.1, "$V_j$ here"), (8.3, "$K_{j+1}$ here"), (13.5, "$V_{j+1}$ here")],
)  # fmt: skip
BACKWARD = (
    [
        ("copies", 0.15, 9, "$Q_{i+1}$, $dO_{i+1}$, lse, delta into the other stage"),
        ("tensor cores", 0, 2.6, "$S^T = K Q_i^T$"), ("tensor cores", 2.6, 5.2, "$dP^T = V dO_i^T$"),
        ("other units", 5.2, 7.2, "$P$, $dS$"),
        ("tensor cores", 7.4, 9.9, "$dV$ += $P^T dO_i$"), ("tensor cores", 9.9, 12.4, "$dK$ += $dS^T Q_i$"),
        ("tensor cores", 12.4, 14.2, "$dS K$"), ("other units", 14.2, 15.0, "turn?"),
        ("memory", 15.15, 16.5, "$dQ$ +="),
    ],
    [(0, "stage here"), (7.3, "dS shared"), (15.05, "my turn"), (16.6, "added")],
)  # fmt: skip


def draw_steps(axes, steps, barriers, title):
    heights = {lane: len(LANES) - 1 - i for i, lane in enumerate(LANES)}
    for lane, begin, end, text in steps:
        axes.barh(heights[lane], end - begin, left=begin, height=0.72, color=LANES[lane], edgecolor="white")
        axes.text((begin + end) / 2, heights[lane], text, ha="center", va="center", fontsize=7)
    for time, text in barriers:
        axes.axvline(time, color="#1b3a57", lw=1, ls="--")
        axes.text(time + 0.05, len(LANES) - 0.38, text, fontsize=6.5, ha="left", va="bottom", color="#1b3a57")
    used = {lane for lane, *_ in steps}
    axes.set_yticks([heights[lane] for lane in LANES if lane in used], [lane for lane in LANES if lane in used])
    axes.set_ylim(min(heights[lane] for lane in used) - 0.5, len(LANES) - 0.4)
    axes.set_xlim(-0.1, 17.2)
    axes.set_xticks([])
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(title, fontsize=9, loc="left", pad=16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/kernels.png"))
    out = parser.parse_args().out
    tree, forward, backward = plans()
    figure = plt.figure(figsize=(10, 9.6))
    grid = figure.add_gridspec(3, 2, height_ratios=[4.6, 1.15, 1.55], hspace=0.42, wspace=0.2)

    axes = figure.add_subplot(grid[0, 0])
    shown, tiles = 6, kinds(forward.forward_tiles(), forward.header)
    draw_tiles(axes, tree, forward.header, tiles, "forward: a block owns 128 rows and walks key tiles of 64")
    for place, j in enumerate(np.flatnonzero(tiles[shown])):
        number(axes, forward.header, shown, j, place)
    frame(axes, forward.header, (shown, shown + 1), (0, tiles.shape[1]))

    axes = figure.add_subplot(grid[0, 1])
    shown, turns, tiles = 2, 11, kinds(backward.backward_tiles(), backward.header)
    draw_tiles(axes, tree, backward.header, tiles, "backward: it owns 128 keys and walks query tiles of 64 rows")
    for place, i in enumerate(np.flatnonzero(tiles[:, shown])):
        number(axes, backward.header, i, shown, place)
    for rank, j in enumerate(reversed(np.flatnonzero(tiles[turns]))):
        if j != shown:
            number(axes, backward.header, turns, j, f"turn {rank}")
    frame(axes, backward.header, (0, tiles.shape[0]), (shown, shown + 1))
    labels = {FULL: "full: no mask", PARTIAL: "partial: masked", SKIPPED: "skipped"}
    figure.legend(
        [Patch(color=COLORS[kind]) for kind in labels],
        labels.values(),
        fontsize=8,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.925),
        ncols=3,
    )
    draw_steps(
        figure.add_subplot(grid[1, :]), *FORWARD, "two key tiles of a forward block (dashed: barriers; not to scale)"
    )
    draw_steps(figure.add_subplot(grid[2, :]), *BACKWARD, "one query tile of a backward block")
    figure.savefig(out, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
