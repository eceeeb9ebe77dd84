"""Floor and prediction of the kernels that only move rows: gather, scatter, lse_merge, the rows of logits."""

from dataclasses import dataclass

# From a launch to the next on one stream, with an idle chip in between at either end. Of the order that CUDA graphs
# show; not fitted.
KERNEL_SECONDS = 2e-6


@dataclass(frozen=True)
class Cost:
    """Seconds of one call on one chip."""

    moved_bytes: int  # once each, by any implementation
    floor: float  # at the datasheet's copy rate
    predicted: float
    bound: str = "copy"


def gather(chip, num_rows, row_bytes):
    """`replay_gather`: rows read and written, an int64 index read."""
    return _moved(chip, num_rows * (2 * row_bytes + 8))


def scatter(chip, num_sources, num_rows, row_bytes):
    """`replay_scatter`: `num_sources` rows are read and summed into `num_rows`; start and order are int64."""
    return _moved(chip, num_sources * (row_bytes + 8) + num_rows * (row_bytes + 8))


def lse_merge(chip, num_partials, num_queries, heads, value_dim):
    """`lse_merge` of fp32 partial results."""
    return _moved(chip, (num_partials + 1) * num_queries * heads * (value_dim + 1) * 4)


def logits_rows(chip, num_rows, vocabulary, element_size=2):
    """`logits_row_stats`: log-sum-exp (fp64) and entropy of each row, in one pass over it."""
    return _moved(chip, num_rows * (vocabulary * element_size + 12))


def _moved(chip, moved_bytes):
    predicted = moved_bytes / (chip.reached_copy_gbs * 1e9) + KERNEL_SECONDS
    return Cost(moved_bytes, chip.floor(0, moved_bytes)[1], predicted)
