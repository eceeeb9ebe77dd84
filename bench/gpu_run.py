"""The GPU benches of `make gpu`: every target in one process, printed, written as JSON and as a page.

python bench/gpu_run.py [--rounds 15] [--only NAME] [--out bench/results/gpu.json] [--markdown docs/gpu_performance.md]
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import gpu_attention
import gpu_rows
import gpu_training
import torch
from gpu_check import complaint
from gpu_timing import Ceilings, timer_for
from interleaved import interleave
from report import machine as host
from report import print_rows, write_markdown, write_rows

INTRO = [
    "Written by `make gpu`. A workload's implementations run in turn in one process: events around calls that are",
    "queued ahead, over rotated buffers larger than L2; medians are shown, with half the distance of the quartiles.",
    "32 query / 8 KV heads of 128, bf16. Rates count (query, key it sees) pairs and bytes that must move, nothing",
    "else; the ceilings, a product of 8,192 x 8,192 and a copy of 1 GiB, run in the same rounds. The floor is the",
    "slower of both. A backward has five products of the pairs that a forward has two of; gradients are autograd's, in",
    "each peer's own layout, and ours run beside one peer at a time. Bars of the backward: FlashAttention-2 on chains,",
    "every peer on trees, and 6 times FlashAttention over every sequence for forward and backward of 28 responses to",
    "32K (DualKV); an aim on an H100 is what FlashAttention-2 published without a mask. Verdicts: *aim* and *bar* were",
    "reached, MISSED was not. `=`: a difference below the spread.",
]


def driver_version():
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def machine():
    """What the numbers were measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        **{name: value for name, value in host().items() if name in ("processor", "torch", "python")},
    }


def measured_ceilings(device, rounds):
    """{name: value} at the start of the run; each workload measures them again for its shares."""
    ceilings = Ceilings(device)
    rates = ceilings.rates(interleave(ceilings.implementations, rounds, timer_for(device)))
    return {"matmul_tflop_s": round(rates[0] / 1e12, 1), "copy_gb_s": round(rates[1] / 1e9, 1)}


def absences(absent):
    """Lines of the page on peers that did not run."""
    if not absent:
        return []
    lines = ["", "## Peers that did not run", "", "| workload | peer | reason |", "| --- | --- | --- |"]
    return lines + [
        f"| {entry['workload']} | {entry['peer']} | {entry['reason'].replace('|', '/')} |" for entry in absent
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds per workload")
    parser.add_argument("--only", help="attention workloads whose names contain this, and nothing else")
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu.json"))
    parser.add_argument("--markdown", type=Path, help="also write a page, if everything runs")
    arguments = parser.parse_args()
    if problem := complaint():
        sys.exit(problem)

    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    facts = machine() | measured_ceilings(device, arguments.rounds)
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    rows, absent = gpu_attention.run(device, arguments.rounds, arguments.only)
    training, refused = gpu_training.run(device, arguments.rounds, arguments.only)
    rows, absent = rows + training, absent + refused
    if not arguments.only:
        rows += gpu_rows.run(device, arguments.rounds)
    print_rows(rows)
    for entry in absent:
        print(f"{entry['peer']} did not run {entry['workload']}: {entry['reason']}")
    write_rows(rows, arguments.out, facts, absent=absent)
    if arguments.markdown and not arguments.only:
        write_markdown(rows, arguments.markdown, "Measured on a GPU", INTRO, facts, absences(absent))
    missed = [row for row in rows if row.verdict == "MISSED"]
    spread = statistics.median([float(row.note.strip("± %")) for row in rows if row.note.startswith("±")] or [0])
    print(f"\n{len(rows)} numbers, {len(missed)} bars missed, median spread {spread:.1f} %; written to {arguments.out}")


if __name__ == "__main__":
    main()
