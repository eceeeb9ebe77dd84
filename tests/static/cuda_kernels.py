"""What is asked of each CUDA kernel, as data: its budget and what its machine code must hold. A new kernel is one row.

Patterns are matched with whole opcodes as the disassembler spells them, such as LDG.E.128.
"""

from dataclasses import dataclass

COPY_ASYNC_16 = r"LDGSTS\.E\.BYPASS(\.LTC\w+)?\.128"  # past L1, 16 bytes straight into shared memory
COPY_ASYNC_4 = r"LDGSTS\.E(\.LTC\w+)?"
WAIT_FOR_COPIES = r"LDGDEPBAR"
LOAD_MATRIX = r"LDSM\.16\.M88\.4"
LOAD_MATRIX_TRANSPOSED = r"LDSM\.16\.MT88\.4"
MMA = {"bf16": r"HMMA\.16816\.F32\.BF16", "fp16": r"HMMA\.16816\.F32"}
LOAD_16, STORE_16 = r"LDG\.E(\.\w+)*\.128(\.\w+)*", r"STG\.E(\.\w+)*\.128(\.\w+)*"
BARRIER = r"BAR\.SYNC\S*"
MBARRIER = (
    ("80", r"STS\.64"), ("80", r"ATOMS\.ARRIVE\.64"), ("80", r"ARRIVES\.LDGSTSBAR\.64"),  # the wait loops over a load
    ("90", r"SYNCS\.EXCH\.64"), ("90", r"SYNCS\.ARRIVE\.TRANS64\.A1T0"), ("90", r"SYNCS\.PHASECHK\.TRANS64\.TRYWAIT"),
    ("90", r"ARRIVES\.LDGSTSBAR\.64\.ARVCNT"),  # without .noinc it would be .TRANSCNT
)  # fmt: skip
ASSERT = r"CALL\.\S*"  # of __assertfail, which is all that device code calls
TO_BF16, TO_FP16 = r"F2FP\.BF16\S*", r"F2FP\.(F16\.\S*)?PACK_AB"


@dataclass(frozen=True)
class Kernel:
    """`config` and `shared` are C++ types, with {0}, {1} for the kernel's template arguments.

    `config` holds kThreads, and kMaxRegisters or a kTable that has max_registers(); `shared` is the kernel's Smem, ""
    where it has none.
    """

    name: str
    instantiations: int  # on each chip
    config: str
    shared: str = ""
    holds: tuple = ()  # patterns for every instantiation
    holds_on: tuple = ()  # (chip, pattern), ...
    holds_where: tuple = ()  # (regular expression for the template arguments, pattern), ...
    shared_bound: tuple = ()  # (chip, regular expression): where shared memory allows fewer blocks than registers do
    integer_atomics: str = ""  # what they are for; atomics that add floats are never allowed


KERNELS = (
    Kernel(
        "lse_merge", 4, "LseMergeConfig",
        holds_where=(("float, 4|double, 2", LOAD_16), ("float, 4|double, 2", STORE_16)),
    ),
    Kernel(
        "lse_merge_backward", 4, "LseMergeConfig",
        holds_where=(("float, 4|double, 2", LOAD_16), ("float, 4|double, 2", STORE_16)),
    ),
    Kernel("lse_merge_dsinks", 2, "LseMergeConfig", shared="SinkGradientSmem<{0}>", holds=(BARRIER,)),
    Kernel(
        "replay_gather", 3, "ReplayGatherConfig", holds=(ASSERT,),
        holds_where=(("Vector16", LOAD_16), ("Vector16", STORE_16)),
    ),
    Kernel(
        "replay_scatter", 8, "ReplayScatterConfig", holds=(ASSERT,),
        holds_where=(("bf16", TO_BF16), ("fp16", TO_FP16)),
    ),
    Kernel(
        "logits_row_stats", 16, "LogitsRowConfig", shared="LogitsRowSmem<typename SumOf<{0}>::Type>",
        holds=(BARRIER,), holds_where=(("double.*2$|float.*4$|[bf][fp]16.*8$", LOAD_16),),
    ),
    Kernel("logits_pick", 8, "LogitsRowConfig", holds=(ASSERT,)),
    Kernel(
        "logits_row_grad", 16, "LogitsRowConfig", shared="LogitsGradSmem", holds=(BARRIER, ASSERT),
        holds_where=(
            ("double.*2$|float.*4$|[bf][fp]16.*8$", LOAD_16), ("double.*2$|float.*4$|[bf][fp]16.*8$", STORE_16),
            ("bf16", TO_BF16), ("fp16", TO_FP16),
        ),
    ),
    Kernel(
        "tree_attention", 32, "{0}", shared="typename {0}::Smem",
        holds=(COPY_ASYNC_16, WAIT_FOR_COPIES, LOAD_MATRIX, LOAD_MATRIX_TRANSPOSED, BARRIER, STORE_16),
        holds_where=(("bf16", MMA["bf16"]), ("fp16", MMA["fp16"])),
        shared_bound=(("80", "256, 64"),),  # 98 KiB of 164
    ),
    Kernel(
        "tree_attention_backward", 12, "{0}", shared="typename {0}::Smem",
        holds=(COPY_ASYNC_16, COPY_ASYNC_4, WAIT_FOR_COPIES, LOAD_MATRIX, LOAD_MATRIX_TRANSPOSED, BARRIER, ASSERT),
        holds_where=(("bf16", MMA["bf16"]), ("fp16", MMA["fp16"])),
        integer_atomics="a block's ticket",
    ),
    Kernel("attention_delta", 3, "BackwardRowsConfig", holds=(LOAD_16,)),
    Kernel("attention_dsinks", 1, "{0}", shared="typename {0}::Smem", holds=(BARRIER,)),
    Kernel("tree_attention_merge", 3, "TreeAttentionMergeConfig", holds=(LOAD_16,)),
    Kernel(
        "tile_matmul", 4, "{0}", shared="typename {0}::Smem",
        holds=(COPY_ASYNC_16, WAIT_FOR_COPIES, LOAD_MATRIX, BARRIER),
        holds_where=(("bf16", MMA["bf16"]), ("fp16", MMA["fp16"]), ("false", LOAD_MATRIX_TRANSPOSED)),
    ),
    Kernel(
        "copy_pipeline", 1, "{0}", shared="typename {0}::Smem",
        holds=(COPY_ASYNC_16, BARRIER), holds_on=MBARRIER,
        integer_atomics="arrivals at an mbarrier",
    ),
)  # fmt: skip


def kernel_of(function):
    """The row of a demangled name, such as regrow::lse_merge<float, 4>(...)."""
    rows = [kernel for kernel in KERNELS if f"::{kernel.name}<" in function or f"::{kernel.name}(" in function]
    assert len(rows) == 1, f"{function} has {len(rows)} rows in tests/static/cuda_kernels.py, must have one"
    return rows[0]


def template_arguments(function):
    """["Config<bf16, false>", "4"] of "void kernel<Config<bf16, false>, 4>(Params)"."""
    head = function.split("<", 1)
    if len(head) == 1 or "(" in head[0]:
        return []
    arguments, depth = [""], 0
    for character in head[1]:
        if character in "<({[":
            depth += 1
        elif character in ">)}]":
            depth -= 1
            if depth < 0:
                break
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return [argument.strip() for argument in arguments]
