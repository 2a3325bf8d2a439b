"""What jobs of commands are measured on: the CPUs of this machine, or one of its GPUs."""

from __future__ import annotations

from autotune.config import Config
from autotune.devices.cpu import Cpu
from autotune.devices.device import Device
from autotune.devices.gpu import Gpu
from autotune.machine.gpus import cuda_devices
from autotune.machine.hardware import cpu_model
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import COMMAND, JobSpec
from autotune.storage.paths import Workspace


class CommandDevice(Device):
    """A device that commands are measured on. Those of models lend it, so that both wait for each other.

    Its target has the kind `command`; `cpus`, how many a measurement needs; `gpu`, whether it needs one; and `build_s`
    and `measure_s`, the seconds that a candidate may take, where the space says so.
    """

    family = COMMAND
    has_model = False
    runs_models = False

    @classmethod
    def lent(cls, config: Config) -> tuple[str, ...]:
        return ()

    @property
    def needs_gpu(self) -> bool:
        """Whether a measurement needs a GPU."""
        return bool(self.target.get("gpu"))

    def kind(self) -> str:
        return Gpu.family if self.needs_gpu else Cpu.family

    def kind_of_nodes(self, workspace: Workspace, spec: JobSpec) -> str:
        return self.kind()

    def log_kind(self) -> DeviceKind:
        target = {name: value for name, value in self.target.items() if name not in ("build_s", "measure_s")}
        gpus = cuda_devices() if self.needs_gpu else ()
        return DeviceKind(target, next((gpu.name for gpu in gpus), "") if self.needs_gpu else cpu_model())

    def build_timeout_s(self, config: Config) -> float:
        return float(self.target.get("build_s") or config.build.timeout_s)

    def measure_timeout_s(self, config: Config) -> float:
        return float(self.target.get("measure_s") or config.measure.timeout_s)
