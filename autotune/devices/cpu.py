"""The CPUs of a machine, taken together."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from autotune.config import Config
from autotune.devices.device import Device, word
from autotune.machine.hardware import allowed_cpus, cache_bytes, cpu_model
from autotune.storage.device_kind import PRIVATE, DeviceKind, Held
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.version import TESTED_TVM

# Where the system does not say how large the caches are.
_L2_BYTES = 2**20
_L3_BYTES = 2**25
# How much of a cache a model's constants may take: activations and code are there, too. Others share the last one, and
# its pages lie anywhere: of 32 MiB, 14 MB of constants stay there from one run to the next, and of 21 MB hardly any.
_L2_FULL = 0.75
_L3_FULL = 0.5


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
        cpus = allowed_cpus()
        machine = {"cpus": len(cpus), "L2": cache_bytes(2, cpus), "L3": cache_bytes(3, cpus)}
        return DeviceKind(dict(self.target), cpu_model(), TESTED_TVM, machine=machine)

    def log_kinds(self) -> tuple[DeviceKind, ...]:
        return (self.log_kind(), *(replace(self.log_kind(), held=held) for held in get_args(Held)))

    def held_by(self, key: str) -> Held | None:
        """Return where kernels find the constants of a model; None if they are timed in a loop.

        Args:
            key: Of the job's tuning logs.
        """
        key = key.partition(PRIVATE)[0]
        return next((kind.held or None for kind in self.log_kinds() if kind.key == key), None)

    def kind_holding(self, size: int) -> DeviceKind:
        """Return what times depend on in a model whose constants have so many bytes."""
        return replace(self.log_kind(), held=nearest_holding(size, int(self.target.get("num-cores", 1))))


def nearest_holding(size: int, threads: int) -> Held:
    """Return the nearest memory of this machine that holds so many bytes for so many threads."""
    cpus = allowed_cpus()[:threads]
    if size <= _L2_FULL * (cache_bytes(2, cpus) or threads * _L2_BYTES):
        return "L2"
    return "L3" if size <= _L3_FULL * (cache_bytes(3, cpus) or _L3_BYTES) else "memory"
