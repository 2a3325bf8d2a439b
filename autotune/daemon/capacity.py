"""What tuning may use of this machine, as the planner sees it, under which names stages lease it, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.config import Config
from autotune.machine import boards, gpus
from autotune.machine.hardware import kept_cpus, lent_cpus
from autotune.machine.leases import resource_names
from autotune.planning.view import Kind, MachineResources
from autotune.storage.formats import SIMULATED, JobSpec
from autotune.storage.paths import Workspace
from autotune.workers.cluster import placement

_LIMIT_FACTOR = 2.0


def machine(config: Config) -> MachineResources:
    """The CPUs and devices that the settings lend.

    With simulated CPUs nothing that is real is lent: what shares no CPU with the rest of the machine must not
    measure on it.
    """
    devices = tuple(f"{SIMULATED}:{name}" for name in config.devices)
    if config.machine.simulated_cpus:
        return MachineResources(tuple(range(config.machine.simulated_cpus)), devices)
    local = ("cpu", *gpus.device_names(gpus.cuda_devices()))
    return replace(cpus(config), devices=(*local, *boards.board_names(config.boards), *devices))


def cpus(config: Config) -> MachineResources:
    """The real CPUs that are lent, and which of them are kept for measurements: on cores of their own."""
    lent = lent_cpus(config.machine.cpu_slots)
    kept, idle = kept_cpus(lent, config.machine.measure_cpus)
    return MachineResources(tuple(cpu for cpu in lent if cpu not in idle), ("cpu",), kept)


def job_device(workspace: Workspace, config: Config, spec: JobSpec) -> str:
    """The kind of device that a job is measured on."""
    if config.cluster.engine:
        return placement.job_device(workspace, spec)
    if spec.board:
        return boards.board_kind(spec.board)
    target, kind = spec.target, spec.target_kind
    if kind == gpus.KIND:
        return gpus.device_kind(str(target.get("arch", "")), gpus.cuda_devices())
    return "cpu" if kind == "llvm" else kind


def threads(config: Config) -> int:
    """The threads that candidates are measured on, and so what a model is compiled for and compared on."""
    return config.measure.threads or len(cpus(config).cpu_device)


def lease_names(config: Config, cpus: Iterable[int], device: str) -> list[str]:
    """The resources that a stage on these CPUs leases, and a measurement on this device. `cpu` is its CPUs."""
    device = boards.shared_name(device, config.boards)
    return resource_names(cpus, device, simulated=bool(config.machine.simulated_cpus))


def limit_s(config: Config, kind: Kind, candidates: int, board: str = "") -> float:
    """Seconds after which a stage as a whole is killed; its candidates have limits of their own.

    On a board, each of them may wait for several sessions and for a kernel that is known to be good.
    """
    each = _LIMIT_FACTOR * max(1, candidates)
    if kind == "measure" and board in config.boards:
        return 60 + 3 * each * (config.measure.timeout_s + 60 + config.boards[board].request_timeout_s)
    return {
        "search": config.search.timeout_s,
        "build": 60 + each * config.build.timeout_s,
        "measure": 60 + each * config.measure.timeout_s,
        "train": config.train.timeout_s,
        "confirm": config.export.timeout_s,
    }[kind]
