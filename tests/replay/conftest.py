import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """These models are too small to share among threads, which would wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
