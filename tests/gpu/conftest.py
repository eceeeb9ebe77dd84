"""Where tests/gpu runs. Without a GPU, bodies that make sense on the CPU run there at small sizes, the others skip."""

import pytest
import torch

import regrow


@pytest.fixture(scope="session")
def device(request):
    """The GPU, or the CPU where there is none or `--device cpu` asks for it."""
    chosen = request.config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen == "cuda" and request.config.getoption("--device") is None and not _built_for_cuda():
        pytest.skip("there is a GPU, but regrow was built without CUDA")
    return torch.device(chosen)


def _built_for_cuda():
    try:
        regrow.replay_gather(torch.zeros(1, 4, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda"))
    except (RuntimeError, NotImplementedError) as error:
        return "built without CUDA" not in str(error) and "Could not run" not in str(error)
    return True


@pytest.fixture
def only_gpu(device):
    """Skips where there is no GPU: streams, graphs and the like have no meaning on the CPU."""
    if device.type != "cuda":
        reason = "this run is on the CPU (--device)" if torch.cuda.is_available() else "there is no GPU"
        pytest.skip(reason)
    return device


@pytest.fixture
def size(device):
    """size(real, small): what this device can do in a moment."""
    return lambda real, small: real if device.type == "cuda" else small


@pytest.fixture
def needs_memory(device):
    """needs_memory(num_bytes) skips where the GPU has less memory free."""

    def check(num_bytes):
        if device.type != "cuda":
            return
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        if free < num_bytes:
            pytest.skip(f"needs {num_bytes / 2**30:.1f} GiB of GPU memory, {free / 2**30:.1f} GiB are free")

    return check
