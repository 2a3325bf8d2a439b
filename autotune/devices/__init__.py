"""The kinds of devices that there are, and what stages lease of a machine. A new target adds its line here.

What differs between devices is asked of one of these objects; where TVM has to be loaded for the answer, of its other
half, `autotune.stages.bench`. TVM is never loaded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotune.config import Config
from autotune.devices.board import Board
from autotune.devices.command import CommandDevice
from autotune.devices.cpu import Cpu
from autotune.devices.device import Device
from autotune.devices.gpu import Gpu
from autotune.devices.simulated import Simulated
from autotune.machine.leases import cpu_name
from autotune.storage.formats import JobSpec

__all__ = [
    "DEVICES",
    "Board",
    "CommandDevice",
    "Cpu",
    "Device",
    "Gpu",
    "Simulated",
    "for_target",
    "kind_of",
    "lease_names",
    "named",
    "of_job",
]

DEVICES: tuple[type[Device], ...] = (Cpu, Gpu, Board, Simulated, CommandDevice)
# By the kind of a target. Boards have targets of the kind `llvm`, too, and are told apart by their settings.
_OF_TARGETS: dict[str, type[Device]] = {"llvm": Cpu, "cuda": Gpu, "simulated": Simulated, "command": CommandDevice}


def for_target(target: Mapping[str, Any]) -> Device:
    """Return the device of this machine that a complete target is for."""
    return _OF_TARGETS[target["kind"]](target)


def kind_of(spec: JobSpec) -> type[Device]:
    """Return what kind of device a job is measured on, without the settings."""
    return Board if spec.board else _OF_TARGETS[spec.target_kind]


def of_job(spec: JobSpec, config: Config) -> Device:
    """Return the device that a job is measured on."""
    if spec.board:
        return Board(spec.target, spec.board, config.boards.get(spec.board))
    return for_target(spec.target)


def named(device: str) -> type[Device]:
    """Return what a device is by its name, such as `cuda:1`, `cuda-sm_80:0` or `rpc-phone:0`."""
    family = device.partition(":")[0].partition("-")[0]
    return next(kind for kind in DEVICES if kind.family == family)


def lease_names(config: Config, cpus: Iterable[int], device: str, node: str = "") -> list[str]:
    """Return the resources that a stage leases: its CPUs, and the device of a measurement.

    Args:
        device: The device; empty for none.
        node: The node of a cluster whose simulated CPUs and devices these are. Nodes on one machine share real ones.
    """
    simulated = "-".join(("simcpu", node)) if node else "simcpu"
    names = [f"{simulated}-{cpu}" if config.machine.simulated_cpus else cpu_name(cpu) for cpu in cpus]
    lock = named(device).lock_name(device, config, node) if device else ""
    return [*names, lock] if lock else names
