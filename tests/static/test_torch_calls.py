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
#include "ops/head_products.h"

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
  m.def(
      "head_gradients(Tensor dlogits, Tensor hidden, Tensor weight, Tensor(a!)? dhidden, Tensor(b!)? dweight) -> ()");
  m.def("current_stream(Tensor t) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(regrow_calls, CompositeExplicitAutograd, m) {
  m.impl("stable_sort", TORCH_BOX(&stable_sort));
  m.impl("arange", TORCH_BOX(&arange));
  m.impl("searchsorted", TORCH_BOX(&searchsorted));
  m.impl("matmul_into", TORCH_BOX(&matmul_into));
  m.impl("head_gradients", TORCH_BOX(&head_gradients));
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
         f"-I{ROOT / 'csrc'}", "-isystem", TORCH / "include", source, ROOT / "csrc" / "cuda" / "unavailable.cpp",
         "-o", library,
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


@pytest.fixture
def products_on_the_cpu():
    """The CPU computes aten::mm and addmm with an out_dtype too, as CUDA does: products exact, sums in out's dtype."""
    checked = []

    def product(a, b, out_dtype, out):
        assert a.dtype == b.dtype and out.dtype == out_dtype
        checked.append(a.dtype)
        return a.to(out_dtype) @ b.to(out_dtype)

    with torch.library._scoped_library("aten", "IMPL", "CPU") as library:
        library.impl("mm.dtype_out", lambda a, b, out_dtype, *, out: out.copy_(product(a, b, out_dtype, out)))
        library.impl(
            "addmm.dtype_out",
            lambda c, a, b, out_dtype, *, beta=1, alpha=1, out: out.copy_(
                beta * c + alpha * product(a, b, out_dtype, out)
            ),
        )
        yield checked


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows, vocabulary, width", [(5, 7, 8), (0, 7, 8), (5, 0, 8), (1, 1, 1)])
def test_head_gradients(rows, vocabulary, width, dtype, calls, products_on_the_cpu, generator):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    dlogits = torch.randn((rows, vocabulary), dtype=wide, generator=generator)
    hidden = torch.randn((rows, width), dtype=wide, generator=generator).to(dtype)
    weight = torch.randn((width, vocabulary), dtype=wide, generator=generator).to(dtype).T  # any strides
    dhidden, dweight = torch.full((rows, width), torch.nan, dtype=wide), torch.ones((vocabulary, width), dtype=wide)
    calls.head_gradients(dlogits, hidden, weight, dhidden, dweight)
    rounded = dlogits.to(dtype).to(wide)
    torch.testing.assert_close(dhidden, rounded @ weight.to(wide))
    torch.testing.assert_close(dweight, 1 + rounded.T @ hidden.to(wide))
    assert set(products_on_the_cpu) <= {dtype}
    before = len(products_on_the_cpu)
    calls.head_gradients(dlogits, hidden, weight, None, None)
    assert len(products_on_the_cpu) == before


@pytest.mark.skipif(torch.version.cuda is not None, reason="for a torch without CUDA")
def test_a_torch_without_cuda(calls):
    with pytest.raises(RuntimeError, match="this build of torch has no CUDA: install one that has"):
        calls.current_stream(torch.zeros(1))
