"""The GPU benches where there is no GPU: their formulas, their peers' arithmetic and their report."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
