"""Simulated devices, for tests and for trying out policies."""

from __future__ import annotations

from autotune.config import Config
from autotune.devices.device import Device
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import SIMULATED, JobSpec
from autotune.storage.paths import Workspace


class Simulated(Device):
    """A device that does not exist."""

    family = SIMULATED
    exists = False
    has_model = False
    runs_models = False

    @classmethod
    def lent(cls, config: Config) -> tuple[str, ...]:
        return tuple(f"{cls.family}:{name}" for name in config.devices)

    @classmethod
    def lock_name(cls, device: str, config: Config, node: str = "") -> str:
        return f"{device}-{node}" if node else device

    def kind(self) -> str:
        return self.family

    def kind_of_nodes(self, workspace: Workspace, spec: JobSpec) -> str:
        return self.family

    def log_kind(self) -> DeviceKind:
        return DeviceKind(dict(self.target))

    def is_here(self, key: str) -> bool:
        """Return true: it is simulated alike everywhere."""
        return True
