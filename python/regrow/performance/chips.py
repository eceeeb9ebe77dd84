"""What a chip can do: the ceilings that floors and predictions are made of."""

import re
from dataclasses import dataclass, replace

from regrow._load import _C

# Where no copy was measured: 4.3 of H200's 4.8 TB/s were, and others are taken to reach the same share.
COPY_SHARE = 4300 / 4800


@dataclass(frozen=True)
class Chip:
    """One GPU. Rates are those of its datasheet unless the name says otherwise."""

    name: str
    compute_capability: int  # ten times major plus minor
    multiprocessors: int
    clock_ghz: float  # the boost clock that the datasheet's TFLOP/s are at
    dense_tflops: float  # bf16 and fp16, fp32 sums, without sparsity
    copy_gbs: float  # bytes read and written
    l2_mib: float
    measured_copy_gbs: float | None = None
    sustained: float = 1.0  # of the clock, under matmul: what a large product reaches of dense_tflops

    @property
    def device_class(self):
        """The planner's constants for it (csrc/kernels/attention_configurations.h)."""
        return _C.device_class(self.compute_capability, self.multiprocessors)

    @property
    def mma_tflops(self):
        """What mma.sync reaches at most."""
        return self.device_class["matmul_per_clock"] * 2 * self.multiprocessors * self.clock_ghz / 1e3

    @property
    def mma_share(self):
        return self.mma_tflops / self.dense_tflops

    @property
    def reached_copy_gbs(self):
        """What a plain copy reaches: measured, or COPY_SHARE of the datasheet."""
        return self.measured_copy_gbs or COPY_SHARE * self.copy_gbs

    @property
    def sustained_ghz(self):
        return self.sustained * self.clock_ghz

    def seconds(self, clocks):
        return clocks / (self.sustained_ghz * 1e9)

    def floor(self, operations, moved_bytes):
        """Seconds by matmul and by copy, at the datasheet's rates: no kernel is below the larger one."""
        return operations / (self.dense_tflops * 1e12), moved_bytes / (self.copy_gbs * 1e9)


CHIPS = {
    chip.name: chip
    for chip in (
        # NVIDIA A100 80GB SXM datasheet and the GA100 whitepaper (108 multiprocessors, 1.41 GHz, 40 MB of L2).
        # `sustained` is the one number that is fitted: to FlashAttention-2 (docs/performance.md).
        Chip("A100", 80, 108, 1.41, 312, 2039, 40, sustained=0.94),
        # NVIDIA H100 SXM5 datasheet: 989.4 TFLOP/s are 4,096 operations a clock of 132 multiprocessors at 1.83 GHz.
        Chip("H100", 90, 132, 1.83, 989.4, 3350, 50, sustained=0.8),
        # The same die with HBM3e; a large product (790 TFLOP/s) and a copy were measured on one.
        Chip("H200", 90, 132, 1.83, 989.4, 4800, 50, measured_copy_gbs=4300, sustained=0.8),
        # 78 multiprocessors of 1.98 GHz and 60 MB of L2 as the device reports them; 148 TFLOP/s and 4.0 TB/s published,
        # and 142 of cuBLAS.
        Chip("H20", 90, 78, 1.98, 148, 4000, 60, sustained=0.96),
    )
}


def chip_of(device):
    """The chip of a name ("H20", "H200", "A100", "H100") or of a CUDA device that is there.

    Raises ValueError for another name, and for a device that is neither.
    """
    import torch

    if isinstance(device, Chip):
        return device
    if isinstance(device, str) and device.upper() in CHIPS:
        return CHIPS[device.upper()]
    names = ", ".join(CHIPS)
    try:
        is_cuda = torch.device(device).type == "cuda"
    except (RuntimeError, TypeError):
        is_cuda = False
    if not is_cuda:
        raise ValueError(f"no model of device {device!r}: name {names} or cpu, or give a CUDA device")
    if not torch.cuda.is_available():
        raise ValueError(f"device is {device}, but there is no CUDA device here: name one of {names}")
    return chip_from_properties(torch.cuda.get_device_properties(device))


def chip_from_properties(properties):
    """From what torch.cuda.get_device_properties says: a known name gives the rates, the device its size."""
    size = {"multiprocessors": properties.multi_processor_count, "l2_mib": properties.L2_cache_size / 2**20}
    for chip in CHIPS.values():
        if re.search(rf"\b{chip.name}\b", properties.name):
            part = size["multiprocessors"] / chip.multiprocessors
            return replace(chip, dense_tflops=chip.dense_tflops * part, **size)
    capability = 10 * properties.major + properties.minor
    per_clock = _C.device_class(capability, size["multiprocessors"])["matmul_per_clock"]
    clock_ghz = properties.clock_rate / 1e6
    return Chip(
        name=properties.name,
        compute_capability=capability,
        clock_ghz=clock_ghz,
        dense_tflops=2 * per_clock * size["multiprocessors"] * clock_ghz / 1e3,
        copy_gbs=2 * properties.memory_clock_rate * properties.memory_bus_width / 8 / 1e6,  # two transfers a clock
        **size,
    )
