"""A GPU that is none: C libraries in the place of NVIDIA's, with the same interface and with faults on demand.

TVM's part for CUDA calls what `cuda.c`, `execute.c` and `cudart.c` have, and nvidia-ml-py calls what `nvml.c` has. The
GPU takes cubins of its architecture only, keeps one sticky error like a real context, and shows what
`CUDA_VISIBLE_DEVICES` says. Real cubins compute nothing on it. What `on_cpu/` compiles is computed on the CPU:
`compile_libraries(folder, computes=True)` puts its `nvcc` beside the libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .on_cpu import image

HERE = Path(__file__).parent
Fault = Literal["illegal", "hang", "slow", "memory", "lost", "cold", "far"]


@dataclass(frozen=True)
class Gpu:
    """One GPU of the stand-in, as nvidia-smi names it."""

    uuid: str
    name: str = "Stand-In 90"
    capability: str = "9.0"
    bus: str = "00000000:17:00.0"

    @property
    def line(self) -> str:
        return f"{self.bus}, {self.uuid}, {self.name}, {self.capability}"


ONE = (Gpu("GPU-0aaaaaaa-0000-0000-0000-000000000000"),)


@dataclass(frozen=True)
class StandIn:
    """The libraries in `libraries`, and the folder that says which GPUs they are and what goes wrong."""

    libraries: Path
    folder: Path

    @classmethod
    def make(cls, libraries: Path, folder: Path, gpus: tuple[Gpu, ...] = ONE) -> StandIn:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "devices.csv").write_text("".join(f"{gpu.line}\n" for gpu in gpus))
        return cls(libraries, folder)

    def environment(self) -> dict[str, str]:
        """What a process needs to take it for its GPUs."""
        old = {name: os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "PATH")}
        computes = {"AUTOTUNE_CUDA_COMPUTES": "1"} if (self.libraries / "nvcc").exists() else {}
        return {
            **computes,
            "TVM_CUDA_COMPILE_MODE": "nvcc",  # NVRTC asks the driver for more than the stand-in has, and dies of it
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(self.libraries), old["LD_LIBRARY_PATH"]))),
            "PATH": os.pathsep.join((str(self.libraries), old["PATH"])),
            "AUTOTUNE_CUDA_STAND_IN": str(self.folder),
        }

    def python(self, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a script of Python in a process that takes it for its GPUs."""
        command = [sys.executable, "-c", script, *map(str, arguments)]
        environment = {**os.environ, **self.environment()}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)

    def fail(self, fault: Fault | None) -> None:
        """From now on a fault happens: to the first module that is launched, or to the whole GPU."""
        (self.folder / "victim").unlink(missing_ok=True)
        (self.folder / "fault").unlink(missing_ok=True)
        if fault:
            (self.folder / "fault").write_text(fault)

    def seen(self, *samples: tuple[int, int, int, int]) -> None:
        """From now on NVML tells each process these samples, and the last one again and again. See `nvml.c`."""
        (self.folder / "nvml").write_text("".join(" ".join(map(str, sample)) + "\n" for sample in samples))

    def graphs(self) -> list[int]:
        """The number of kernels of each CUDA graph that was launched."""
        path = self.folder / "graphs"
        return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []

    def loads(self) -> list[tuple[str, str]]:
        """The GPU and the architecture of each module that was loaded."""
        path = self.folder / "loads"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(uuid, arch) for uuid, arch, _ in map(str.split, lines)]


def compile_libraries(folder: Path, *, computes: bool = False) -> Path:
    """Compile the stand-in's libraries, with its nvidia-smi beside them.

    Args:
        folder: Where to.
        computes: Whether kernels run, as compiled by an `nvcc` of ours that is put there, too.
    """
    (folder / "versions").write_text("libcudart.so.13 { global: *; };\n")
    driver = _compile(folder / "libcuda.so.1", "cuda.c", "execute.c")
    version = [f"-Wl,--version-script,{folder}/versions", "-Wl,-rpath,$ORIGIN"]
    _compile(folder / "libcudart.so.13", "cudart.c", str(driver), *version)
    _compile(folder / "libnvidia-ml.so.1", "nvml.c")
    shutil.copy(HERE / "nvidia-smi", folder / "nvidia-smi")
    if computes:
        image.install(folder)
    return folder


def _compile(library: Path, *sources: str) -> Path:
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run([*command, "-o", str(library), *sources], cwd=HERE, check=True)
    return library
