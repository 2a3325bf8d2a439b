"""Which GPUs a process sees, and how it takes one."""

from __future__ import annotations

import os

import pytest

from autotune.machine.gpus import CudaDevice, visible

H200 = CudaDevice(0, "NVIDIA H200", "sm_90", "GPU-11")
A100 = CudaDevice(1, "NVIDIA A100", "sm_80", "GPU-12")
OTHER = CudaDevice(2, "NVIDIA H200", "sm_90", "GPU-2f")
ALL = (H200, A100, OTHER)


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, ALL),
        ("", ()),
        ("2,0", (OTHER, H200)),
        ("GPU-2", (OTHER,)),
        ("GPU-1", ()),  # of two
        ("1,7,0", (A100,)),
        ("0,0", (H200,)),
        ("-1", ()),
    ],
)
def test_what_the_variable_lets_through(setting: str | None, found: tuple[CudaDevice, ...]) -> None:
    assert visible(ALL, setting) == found


def test_a_process_takes_a_gpu_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    A100.take()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == ("GPU-12", "PCI_BUS_ID")
