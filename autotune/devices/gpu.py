"""GPUs with CUDA. Those of one architecture are one kind of device."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.config import Config
from autotune.devices.device import Device, word
from autotune.machine.gpus import CudaDevice, cuda_devices
from autotune.storage import device_kind
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.version import TESTED_TVM


class Gpu(Device):
    """A GPU. A job for it may be submitted where there is none, and waits for one of its architecture."""

    family = "cuda"
    runtime = "cuda"
    launches_graphs = True
    elsewhere = "for a GPU that this machine does not have"

    @classmethod
    def lent(cls, config: Config) -> tuple[str, ...]:
        return cls.names(cuda_devices())

    @classmethod
    def names(cls, gpus: Sequence[CudaDevice]) -> tuple[str, ...]:
        """Return the names of GPUs, each of which begins with its kind."""
        return tuple(f"{cls.kind_of_arch(gpu.arch, gpus)}:{gpu.index}" for gpu in gpus)

    @classmethod
    def kind_of_arch(cls, arch: str, gpus: Sequence[CudaDevice]) -> str:
        """Return the kind of device for an architecture on a machine with these GPUs.

        It is `cuda` where all GPUs are alike. A GPU of another architecture than the first one has a kind of its own,
        such as `cuda-sm_80`, since neither runs what is compiled for the other, nor may their times be mixed.
        """
        return cls.family if not gpus or gpus[0].arch == arch else f"{cls.family}-{arch}"

    @classmethod
    def kind_of_model(cls, model: str) -> str:
        """Return the kind of device of a cluster's GPUs of a model."""
        return f"{cls.family}-{word(model)}"

    @classmethod
    def lock_name(cls, device: str, config: Config, node: str = "") -> str:
        """Return its number in the order of the PCI bus, whatever else is visible to a workspace."""
        return f"{cls.family}:{device.partition(':')[2]}"

    @property
    def arch(self) -> str:
        """The architecture that the target names."""
        return str(self.target.get("arch", ""))

    def kind(self) -> str:
        return self.kind_of_arch(self.arch, cuda_devices())

    def kind_of_nodes(self, workspace: Workspace, spec: JobSpec) -> str:
        noted = device_kind.read(workspace, spec.target_key.partition(device_kind.PRIVATE)[0])
        return self.kind_of_model(noted.device if noted else self.arch)

    def log_kind(self) -> DeviceKind:
        return self._log_kind(next(iter(self._models), self.arch))

    def _log_kind(self, model: str) -> DeviceKind:
        """Return what times depend on for a model of GPU. The CPU beside it, the target's host, is none of that."""
        target = {name: value for name, value in self.target.items() if name != "host"}
        return DeviceKind(target, model, TESTED_TVM)

    @property
    def _models(self) -> list[str]:
        return [gpu.name for gpu in cuda_devices() if gpu.arch == self.arch]

    def _keys_here(self) -> set[str]:
        """Return also the key of a job that was submitted before the machine had a GPU."""
        return {self._log_kind(model).key for model in (self.arch, *self._models)}


def find_gpu(device: str, gpus: Sequence[CudaDevice]) -> CudaDevice | None:
    """Return the GPU of a name; the first one for an empty name; None if it is not visible."""
    number = device.partition(":")[2]
    return next((gpu for gpu in gpus if number in ("", str(gpu.index))), None)
