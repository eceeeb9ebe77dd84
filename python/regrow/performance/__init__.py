"""What a kernel costs: the floor that a chip allows, and what the kernels' tiles, waves and copies make of it.

The model and its checks: docs/performance.md.
"""

from regrow.performance.chips import CHIPS, Chip, chip_of
from regrow.performance.explain import Explanation, explain

__all__ = ["CHIPS", "Chip", "Explanation", "chip_of", "explain"]
