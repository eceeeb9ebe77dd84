"""The readers of ptxas' and the disassembler's output, on what these print; no nvcc is needed."""

import pytest

from cuda_build import makespan, parse_ptxas, parse_sass
from cuda_kernels import KERNELS, kernel_of, template_arguments

MERGE = "_ZN6regrow9lse_mergeIfLi4EEEvNS_14LseMergeParamsE"
PTXAS = f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{MERGE}' for 'sm_80'
ptxas info    : Function properties for {MERGE}
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 62 registers, used 1 barriers, 2048 bytes smem, 424 bytes cmem[0]
ptxas info    : Compiling entry function '{MERGE}' for 'sm_90'
ptxas info    : Function properties for __internal_slow_path
    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Function properties for {MERGE}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers
"""

SASS = """
Fatbin elf code:
================
arch = sm_80
		Function : first
	.headerflags	@"EF_CUDA_SM80"
        /*0000*/                   MOV R1, c[0x0][0x28] ;                    /* 0x00000a0000017a02 */
                                                                             /* 0x000fe20000000f00 */
        /*0010*/              @!P0 BRA 0x40 ;                                /* 0x0000000000007947 */
        /*0020*/             @!UP1 LDG.E.128 R4, [R2.64] ;                   /* 0x0000000402047981 */
		..........

Fatbin elf code:
================
arch = sm_90
		Function : first
        /*0000*/                   LDC R1, c[0x0][0x28] ;                    /* 0x00000a00ff017b82 */
		Function : second
        /*0000*/                   EXIT ;                                    /* 0x000000000000794d */
"""


def test_ptxas():
    first, second = parse_ptxas(PTXAS)
    assert (first.chip, first.mangled, first.kernel.name) == ("80", MERGE, "lse_merge")
    assert first.arguments == ["float", "4"]
    numbers = (first.stack, first.spill_stores, first.spill_loads, first.registers, first.static_shared)
    assert numbers == (16, 8, 4, 62, 2048)
    assert (second.chip, second.stack, second.registers, second.static_shared) == ("90", 0, 40, 0)


def test_sass():
    assert parse_sass(SASS) == {
        ("80", "first"): ["MOV", "BRA", "LDG.E.128"],
        ("90", "first"): ["LDC"],
        ("90", "second"): ["EXIT"],
    }


@pytest.mark.parametrize(
    "function, arguments",
    [
        ("void regrow::kernel<regrow::Config<regrow::bf16, false>, 4>(Params<int>)",
         ["regrow::Config<regrow::bf16, false>", "4"]),
        ("void regrow::kernel<float, (bool)1, A{(int)64, (int)2}>(P)", ["float", "(bool)1", "A{(int)64, (int)2}"]),
        ("regrow::plain(Params<float, 2>)", []),
    ],
)  # fmt: skip
def test_template_arguments(function, arguments):
    assert template_arguments(function) == arguments


def test_kernel_of():
    assert kernel_of("void regrow::logits_pick<float, true>(P)").name == "logits_pick"
    with pytest.raises(AssertionError, match="has 0 rows"):
        kernel_of("void regrow::logits_pick_more<float>(P)")
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def test_makespan():
    assert makespan([5, 4, 3, 3], jobs=2) == 8
    assert makespan([], jobs=2) == 0
