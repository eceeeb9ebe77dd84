"""Fresh memory is nan in every test of rollouts: reserved places exist long before they are written."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_memory_is_nan():
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
