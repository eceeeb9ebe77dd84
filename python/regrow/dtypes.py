"""The one rule of accumulation dtypes."""

import torch


def accumulation_dtype(dtype):
    """What sums of `dtype` are kept in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
