"""What tuning may use of this machine, as the planner sees it, under which names stages lease it, and for how long."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from autotune import devices
from autotune.config import Config
from autotune.devices import DEVICES, Device
from autotune.machine.hardware import kept_cpus, lent_cpus
from autotune.planning.view import Kind, MachineResources
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace

_LIMIT_FACTOR = 2.0
_ALLOWANCE_S = 60.0


def machine(config: Config) -> MachineResources:
    """The CPUs and devices that the settings lend.

    With simulated CPUs nothing that is real is lent: what shares no CPU with the rest of the machine must not
    measure on it.
    """
    simulated = config.machine.simulated_cpus
    names = tuple(chain(*(kind.lent(config) for kind in DEVICES if not (simulated and kind.exists))))
    return MachineResources(tuple(range(simulated)), names) if simulated else replace(cpus(config), devices=names)


def cpus(config: Config) -> MachineResources:
    """The real CPUs that are lent, and which of them are kept for measurements: on cores of their own."""
    lent = lent_cpus(config.machine.cpu_slots)
    kept, idle = kept_cpus(lent, config.machine.measure_cpus)
    return MachineResources(tuple(cpu for cpu in lent if cpu not in idle), ("cpu",), kept)


def job_device(workspace: Workspace, config: Config, spec: JobSpec) -> str:
    """The kind of device that a job is measured on."""
    device = devices.of_job(spec, config)
    return device.kind_of_nodes(workspace, spec) if config.cluster.engine else device.kind()


def threads(config: Config) -> int:
    """The threads that candidates are measured on, and so what a model is compiled for and compared on."""
    return config.measure.threads or len(cpus(config).cpu_device)


def limit_s(config: Config, kind: Kind, candidates: int, device: Device) -> float:
    """Seconds after which a stage as a whole is killed; its candidates have limits of their own."""
    return {
        "search": config.search.timeout_s,
        "build": _ALLOWANCE_S + _LIMIT_FACTOR * max(1, candidates) * device.build_timeout_s(config),
        "measure": device.measure_limit_s(config, candidates),
        "train": config.train.timeout_s,
        "compile": config.export.timeout_s,
        "confirm": config.export.timeout_s,
    }[kind]
