"""GPUs have one number for everybody, and kinds where they are not alike."""

from __future__ import annotations

import pytest

from autotune.config import Config
from autotune.devices import Gpu, gpu
from autotune.devices.gpu import find_gpu
from autotune.errors import MachineProblem
from autotune.machine.gpus import CudaDevice

H200 = CudaDevice(0, "NVIDIA H200", "sm_90", "GPU-11")
A100 = CudaDevice(1, "NVIDIA A100", "sm_80", "GPU-12")
OTHER = CudaDevice(2, "NVIDIA H200", "sm_90", "GPU-2f")
ALL = (H200, A100, OTHER)
TARGET = {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "znver4"}}


def test_gpus_of_another_architecture_are_of_another_kind() -> None:
    assert Gpu.names(ALL) == ("cuda:0", "cuda-sm_80:1", "cuda:2")
    assert Gpu.kind_of_arch("sm_80", ALL) == "cuda-sm_80"
    assert Gpu.kind_of_arch("sm_75", ALL) == "cuda-sm_75", "no device is of that kind: the job waits for one"
    assert Gpu.kind_of_arch("sm_75", ()) == "cuda"


def test_a_gpu_is_leased_under_one_name_whatever_else_is_visible() -> None:
    assert [Gpu.lock_name(name, Config()) for name in Gpu.names(ALL)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [Gpu.lock_name(name, Config()) for name in Gpu.names((A100, H200))] == ["cuda:1", "cuda:0"]


def test_a_gpu_is_found_by_its_name_where_it_is_visible() -> None:
    assert find_gpu("cuda-sm_80:1", (OTHER, A100)) == A100
    assert find_gpu("cuda:0", (OTHER, A100)) is None


def test_two_hosts_share_the_logs_of_a_gpu() -> None:
    other = {**TARGET, "host": {"kind": "llvm", "mcpu": "skylake"}}
    assert Gpu(TARGET).log_kind().key == Gpu(other).log_kind().key


def test_a_job_may_get_its_gpu_later_but_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "cuda_devices", lambda: ())
    early = Gpu(TARGET).log_kind().key
    monkeypatch.setattr(gpu, "cuda_devices", lambda: (H200,))
    Gpu(TARGET).check_here(early)
    key = Gpu(TARGET).log_kind().key
    monkeypatch.setattr(gpu, "cuda_devices", lambda: (CudaDevice(0, "NVIDIA H100", "sm_90"),))
    with pytest.raises(MachineProblem, match="for a GPU that this machine does not have"):
        Gpu(TARGET).check_here(key)
