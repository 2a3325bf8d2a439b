"""A GPU that computes nothing: C libraries in the place of NVIDIA's, with the same interface and with faults on demand.

What TVM's part for CUDA calls is compiled from `cuda.c` and `cudart.c` with gcc, and what nvidia-ml-py calls from
`nvml.c`. It takes cubins of its architecture
only, keeps one sticky error like a real context, and shows what `CUDA_VISIBLE_DEVICES` says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
Fault = Literal["illegal", "hang", "slow", "memory", "lost"]


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
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(self.libraries), old["LD_LIBRARY_PATH"]))),
            "PATH": os.pathsep.join((str(self.libraries), old["PATH"])),
            "AUTOTUNE_CUDA_STAND_IN": str(self.folder),
        }

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


def compile_libraries(folder: Path) -> Path:
    """Compile the stand-in's libraries, with its nvidia-smi beside them."""
    common = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    (folder / "versions").write_text("libcudart.so.13 { global: *; };\n")
    driver, runtime = folder / "libcuda.so.1", folder / "libcudart.so.13"
    subprocess.run([*common, "-Wl,-soname,libcuda.so.1", "-o", str(driver), str(HERE / "cuda.c")], check=True)
    version = ["-Wl,-soname,libcudart.so.13", f"-Wl,--version-script,{folder}/versions", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*common, *version, "-o", str(runtime), str(HERE / "cudart.c"), str(driver)], check=True)
    management = folder / "libnvidia-ml.so.1"
    subprocess.run([*common, f"-Wl,-soname,{management.name}", "-o", str(management), str(HERE / "nvml.c")], check=True)
    shutil.copy(HERE / "nvidia-smi", folder / "nvidia-smi")
    return folder
