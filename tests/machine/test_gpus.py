"""GPUs have one number for everybody, whatever a user may see of them, and kinds where they are not alike."""

from __future__ import annotations

import os

import pytest

from autotune.machine.gpus import CudaDevice, device_kind, device_names, find_device, lock_name, visible

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


def test_gpus_of_another_architecture_are_of_another_kind() -> None:
    assert device_names(ALL) == ("cuda:0", "cuda-sm_80:1", "cuda:2")
    assert device_kind("sm_80", ALL) == "cuda-sm_80"
    assert device_kind("sm_75", ALL) == "cuda-sm_75", "no device is of that kind: the job waits for one"
    assert device_kind("sm_75", ()) == "cuda"


def test_a_gpu_is_leased_under_one_name_whatever_else_is_visible() -> None:
    assert [lock_name(name) for name in device_names(ALL)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [lock_name(name) for name in device_names((A100, H200))] == ["cuda:1", "cuda:0"]
    assert lock_name("simulated:gpu0") == "simulated:gpu0"


def test_a_process_takes_the_gpu_of_a_name_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    found = find_device("cuda-sm_80:1", (OTHER, A100))
    assert found == A100
    A100.take()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == ("GPU-12", "PCI_BUS_ID")
    assert find_device("cuda:0", (OTHER, A100)) is None
