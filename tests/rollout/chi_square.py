"""Whether counts can come from a distribution."""

import torch


def chi_square_p_value(counts, expected):
    """P(as unlikely or more) of the counts; cells that expect fewer than 5 are one. 0 if the impossible occurred."""
    if bool(counts[expected == 0].any()):
        return 0.0
    few = expected < 5
    counts = torch.cat([counts[~few], counts[few].sum()[None]])
    expected = torch.cat([expected[~few], expected[few].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) == 1:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
