"""Runs every op once at a small size: what compute-sanitizer and the profiler look at.

python tests/gpu/every_kernel.py [--device cpu] [--names]: --names prints the kernels that ran, a line each.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # beside which tests find their helpers

import torch
from torch.profiler import ProfilerActivity, profile

from device_operations import operations


def run(device):
    # Ends in the middle of tiles; long enough that decoding is split over keys.
    for operation in operations(device, tokens=700, width=36, vocabulary=300):
        results = operation.run()
        assert all(result.numel() for result in results), operation.name
    if device.type == "cuda":
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--names", action="store_true")
    arguments = parser.parse_args()
    if not arguments.names:
        return run(arguments.device)
    cuda = [ProfilerActivity.CUDA] if arguments.device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
        run(arguments.device)
    print("\n".join(sorted({event.name for event in profiler.events() if "regrow::" in event.name})))


if __name__ == "__main__":
    main()
