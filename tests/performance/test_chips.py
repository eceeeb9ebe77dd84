"""Chips by name and by what a device reports."""

from types import SimpleNamespace

import pytest
import torch

from regrow.performance.chips import CHIPS, chip_from_properties, chip_of


def properties(name, multiprocessors, **more):
    return SimpleNamespace(name=name, multi_processor_count=multiprocessors, L2_cache_size=60 << 20, **more)


@pytest.mark.parametrize("name", CHIPS)
def test_a_name_in_either_case(name):
    assert chip_of(name) == chip_of(name.lower()) == CHIPS[name]


# Operations a clock of a multiprocessor's tensor cores: whole powers of two, but on H20, whose rate is set by fuses.
@pytest.mark.parametrize("name, per_clock", [("A100", 2048), ("H100", 4096), ("H200", 4096), ("H20", 958)])
def test_the_datasheet_is_what_the_clock_gives(name, per_clock):
    chip = CHIPS[name]
    assert chip.dense_tflops * 1e3 / chip.multiprocessors / chip.clock_ghz == pytest.approx(per_clock, rel=0.01)


@pytest.mark.parametrize("name, share", [("A100", 1.0), ("H100", 0.62), ("H200", 0.62), ("H20", 0.62)])
def test_what_mma_sync_reaches_of_the_datasheet(name, share):
    assert CHIPS[name].mma_share == pytest.approx(share, abs=0.01)


def test_a_known_device_keeps_its_rates():
    chip = chip_from_properties(properties("NVIDIA H200 NVL", 132))
    assert (chip.name, chip.copy_gbs, chip.l2_mib) == ("H200", 4800, 60)


def test_a_slice_of_a_known_device_has_its_part_of_the_matmul():
    chip = chip_from_properties(properties("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 54))
    assert chip.dense_tflops == pytest.approx(156)


def test_an_unknown_device_gives_its_own_rates():
    reported = {
        "major": 8,
        "minor": 9,
        "clock_rate": 2_490_000,
        "memory_clock_rate": 9_001_000,
        "memory_bus_width": 384,
    }
    chip = chip_from_properties(properties("NVIDIA L40S", 142, **reported))
    assert chip.dense_tflops == pytest.approx(362, rel=0.01)
    assert chip.copy_gbs == pytest.approx(864, rel=0.01)
    assert chip.compute_capability == 89


@pytest.mark.parametrize("device", ["B9", "cpu", None, 3.5])
def test_what_is_no_chip(device):
    with pytest.raises(ValueError, match=f"no model of device {device!r}: name A100, H100, H200, H20 or cpu"):
        chip_of(device)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is cuda:1, but there is no CUDA device here: name one of A100"):
        chip_of("cuda:1")
