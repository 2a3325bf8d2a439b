"""The CPUs of a machine, taken together."""

from __future__ import annotations

from autotune.config import Config
from autotune.devices.device import Device, word
from autotune.machine.hardware import cpu_model
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.version import TESTED_TVM


class Cpu(Device):
    """The CPUs of a machine."""

    family = "cpu"
    is_local_cpu = True

    @classmethod
    def lent(cls, config: Config) -> tuple[str, ...]:
        return (cls.family,)

    @classmethod
    def lock_name(cls, device: str, config: Config, node: str = "") -> str:
        """Return no name: a measurement leases its CPUs one by one, as other stages do."""
        return ""

    def kind(self) -> str:
        return self.family

    def kind_of_nodes(self, workspace: Workspace, spec: JobSpec) -> str:
        return self.kind_of_model(spec.machine or cpu_model(), int(self.target.get("num-cores", 1)))

    @classmethod
    def kind_of_model(cls, model: str, threads: int) -> str:
        """Return the kind of device of a cluster's CPUs of a model, measured on with so many threads."""
        return f"{cls.family}-{word(model)}-{threads}"

    def log_kind(self) -> DeviceKind:
        return DeviceKind(dict(self.target), cpu_model(), TESTED_TVM)
