"""The limits of a GPU, from what its driver and its memory say; without a GPU on this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from autotune.tvm_backend.kernels.roofline import gpu_roofline
from autotune.tvm_backend.kernels.run import open_device


@dataclass
class Chip:
    """What a driver says of a GPU with 132 multiprocessors at 1.83 GHz, and the memory of this machine."""

    multi_processor_count: int = 132
    max_clock_rate: int = 1_830_000

    def sync(self):
        """Nothing runs."""


@pytest.fixture
def chip(monkeypatch):
    import tvm

    empty = tvm.runtime.empty
    monkeypatch.setattr(tvm.runtime, "empty", lambda shape, dtype, _: empty(shape, dtype, open_device("llvm")))
    return Chip()


@pytest.mark.parametrize(
    ("arch", "precision", "tflops"),
    [
        ("sm_90", "fp32", 61.8),
        ("sm_90", "fp16", 989),
        ("sm_90", "bf16", 989),
        ("sm_80", "fp16", 495),
        ("sm_90", "tf32", 495),
    ],
)
def test_the_arithmetic_is_that_of_the_multiprocessors_at_the_highest_clock(chip, arch, precision, tflops):
    limits = gpu_roofline(chip, SimpleNamespace(attrs={"arch": arch}), precision, copied=2**16)
    assert limits.gflops == pytest.approx(tflops * 1e3, rel=0.01)
    assert limits.gb_per_s > 0


def test_tensor_cores_of_an_unknown_architecture_have_no_known_limit(chip):
    target = SimpleNamespace(attrs={"arch": "sm_999"})
    assert gpu_roofline(chip, target, "tf32", copied=2**16) is None
    assert gpu_roofline(chip, target, copied=2**16) is not None
