"""What csrc/ops asks of torch beyond its stable headers, called on the CPU: the ops themselves do so on CUDA only."""

import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
TORCH = Path(torch.__file__).parent

SOURCE = """
#include <torch/csrc/stable/library.h>

#include "ops/aten.h"
#include "ops/current_stream.h"

namespace regrow::ops {

std::tuple<Tensor, Tensor> stable_sort(const Tensor& t) { return aten::stable_sort(t); }
Tensor arange(const Tensor& like, int64_t size) { return aten::arange(like, size); }
Tensor searchsorted(const Tensor& sorted, const Tensor& values) { return aten::searchsorted(sorted, values); }
void matmul_into(const Tensor& a, const Tensor& b, const Tensor& out) { aten::matmul_into(a, b, out); }
bool current_stream(const Tensor& t) { return static_cast<cuda::Stream>(CurrentStream(t)) != nullptr; }

STABLE_TORCH_LIBRARY(regrow_calls, m) {
  m.def("stable_sort(Tensor t) -> (Tensor, Tensor)");
  m.def("arange(Tensor like, int size) -> Tensor");
  m.def("searchsorted(Tensor sorted, Tensor values) -> Tensor");
  m.def("matmul_into(Tensor a, Tensor b, Tensor(a!) out) -> ()");
  m.def("current_stream(Tensor t) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(regrow_calls, CompositeExplicitAutograd, m) {
  m.impl("stable_sort", TORCH_BOX(&stable_sort));
  m.impl("arange", TORCH_BOX(&arange));
  m.impl("searchsorted", TORCH_BOX(&searchsorted));
  m.impl("matmul_into", TORCH_BOX(&matmul_into));
  m.impl("current_stream", TORCH_BOX(&current_stream));
}

}  // namespace regrow::ops
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    source, library = folder / "calls.cpp", folder / "libcalls.so"
    source.write_text(SOURCE)
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror",
         "-DTORCH_TARGET_VERSION=0x020a000000000000ULL",
         f"-I{ROOT / 'csrc'}", "-isystem", TORCH / "include", source, "-o", library,
         f"-L{TORCH / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"],
        check=True,
    )  # fmt: skip
    torch.ops.load_library(str(library))
    return torch.ops.regrow_calls


# The sources of each destination, as replay_scatter has them from torch on CUDA.
@pytest.mark.parametrize("num_rows, index", [(4, [2, 0, 2, 3, 0, 2]), (1, [0, 0]), (3, []), (0, [])])
def test_sorted_sources(num_rows, index, calls):
    index = torch.tensor(index, dtype=torch.int64)
    values, order = calls.stable_sort(index)
    start = calls.searchsorted(values, calls.arange(index, num_rows + 1))
    assert start.dtype == order.dtype == torch.int64
    for row in range(num_rows):
        assert order[start[row] : start[row + 1]].tolist() == (index == row).nonzero()[:, 0].tolist()
    assert start[0] == 0 and start[-1] == len(index)


# Entries out of range show at either end of start, which is all that the kernel looks at.
@pytest.mark.parametrize("value", [-1, 4])
def test_sources_out_of_range(value, calls):
    values, _ = calls.stable_sort(torch.tensor([0, value, 3]))
    start = calls.searchsorted(values, calls.arange(values, 5))
    assert (start[0] == 0) == (value >= 0) and (start[4] == 3) == (value < 4)


def test_matmul_into(calls):
    # No CPU has this product: shapes and dtypes are checked on meta.
    a, b, out = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in ((2, 4), (4, 3), (2, 3)))
    calls.matmul_into(a, b, out.float())
    calls.matmul_into(a.double(), b.double(), out.double())
    with pytest.raises(RuntimeError):
        calls.matmul_into(a, a, out.float())


@pytest.mark.skipif(torch.version.cuda is not None, reason="for a torch without CUDA")
def test_a_torch_without_cuda(calls):
    with pytest.raises(RuntimeError, match="this build of torch has no CUDA: install one that has"):
        calls.current_stream(torch.zeros(1))
