"""Which GPUs a process sees, and how it takes one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.machine.gpus import CudaDevice, hide_all, visible

from .. import cuda_stand_in

SAY = """
import json
from autotune.machine.gpus import cuda_devices

print(json.dumps([[gpu.index, gpu.name, gpu.arch, gpu.uuid] for gpu in cuda_devices()]))
"""
H200 = CudaDevice(0, "NVIDIA H200", "sm_90", "GPU-11")
A100 = CudaDevice(1, "NVIDIA A100", "sm_80", "GPU-12")
OTHER = CudaDevice(2, "NVIDIA H200", "sm_90", "GPU-2f")
ALL = (H200, A100, OTHER)


@pytest.mark.parametrize(
    ("setting", "seen"),
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
def test_what_the_variable_lets_through(setting: str | None, seen: tuple[CudaDevice, ...]) -> None:
    assert visible(ALL, setting) == seen


def test_a_process_takes_a_gpu_by_its_uuid_and_hides_all_from_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    A100.take()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == ("GPU-12", "PCI_BUS_ID")
    hide_all()
    assert visible(ALL, os.environ["CUDA_VISIBLE_DEVICES"]) == ()


@pytest.mark.skipif(
    shutil.which("gcc") is None or importlib.util.find_spec("pynvml") is None, reason="no gcc, or no nvidia-ml-py"
)
def test_where_there_is_no_nvidia_smi_nvml_names_the_gpus(tmp_path: Path) -> None:
    """As in a container: the driver's library is there, and its tools are not."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    cuda_stand_in.compile_libraries(libraries)
    (libraries / "nvidia-smi").unlink()
    gpus = (cuda_stand_in.Gpu("GPU-2", "A100", "8.0", "00000000:65:00.0"), cuda_stand_in.Gpu("GPU-1"))
    stand_in = cuda_stand_in.StandIn.make(libraries, tmp_path / "gpus", gpus)
    environment = {**os.environ, **stand_in.environment()}
    printed = subprocess.run([sys.executable, "-c", SAY], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == [[0, "Stand-In 90", "sm_90", "GPU-1"], [1, "A100", "sm_80", "GPU-2"]]
