"""What every kind of device that jobs are measured on has to say of itself, without TVM."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from autotune.config import Config
from autotune.errors import MachineProblem
from autotune.machine.hardware import cpu_model
from autotune.storage.device_kind import PRIVATE, DeviceKind, Held
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace

_DIGEST = re.compile(r"-[0-9a-f]{10}$")
_LIMIT_FACTOR = 2.0
_ALLOWANCE_S = 60.0


@dataclass(frozen=True)
class Device(ABC):
    """The device that a target is for. `autotune.stages.bench` is its other half, which may load TVM.

    An implementation guarantees:

    - Each name of `lent` is `kind` and a colon, or `kind` alone, and begins with `family`.
    - Two devices have the same `lock_name` if, and only if, a measurement on one disturbs one on the other.
    - Two devices have the same `log_kind` only if a kernel takes the same time on both.
    - `check_here` passes on the machine that a job was submitted on, while neither its hardware nor TVM changes.

    Attributes:
        target: The target, as TVM takes it.
        family: How the names of its kinds of devices begin.
        runtime: What TVM's runtime calls it.
        launches_graphs: Whether the kernels of a model may be launched on it as one graph.
        is_local_cpu: Whether it is the CPUs of the machine that exports: only they run the C++ program.
        runs_models: Whether this machine can run whole models on it, so that they are timed while a job runs.
        exists: Whether it is more than simulated: it takes its time by itself.
        has_model: Whether its jobs have a model, and each task a tensor program.
    """

    target: Mapping[str, Any]

    family: ClassVar[str]
    runtime: ClassVar[Literal["cpu", "cuda"]] = "cpu"
    launches_graphs: ClassVar[bool] = False
    is_local_cpu: ClassVar[bool] = False
    runs_models: ClassVar[bool] = True
    exists: ClassVar[bool] = True
    has_model: ClassVar[bool] = True
    elsewhere: ClassVar[str] = "on another machine, or with another TVM"

    @classmethod
    @abstractmethod
    def lent(cls, config: Config) -> tuple[str, ...]:
        """Return the names of the devices that this machine has and the settings lend."""

    @classmethod
    def lock_name(cls, device: str, config: Config, node: str = "") -> str:
        """Return the name that a device is leased under, the same in all workspaces; empty if it needs no lease.

        Args:
            device: One of the names that `lent` returns.
            node: The node of a cluster, whose simulated devices are its own.
        """
        return device

    @classmethod
    def local_kind(cls, kind: str) -> str:
        """Return what a node of a cluster itself calls a kind of device of the cluster."""
        return cls.family

    @abstractmethod
    def kind(self) -> str:
        """Return the kind of device of this machine that the target's jobs are measured on, for the planner."""

    @abstractmethod
    def kind_of_nodes(self, workspace: Workspace, spec: JobSpec) -> str:
        """Return the kind of device of a cluster that a job is measured on: hardware as it was submitted for."""

    @abstractmethod
    def log_kind(self) -> DeviceKind:
        """Return what measured times depend on besides the program, as it is on this machine."""

    def is_here(self, key: str) -> bool:
        """Return whether a key of tuning logs is one that this machine gives the target."""
        key = key.partition(PRIVATE)[0]
        return not _DIGEST.search(key) or key in self._keys_here()

    def log_kinds(self) -> tuple[DeviceKind, ...]:
        """Return all kinds whose times this machine measures for the target: that of `log_kind` and others."""
        return (self.log_kind(),)

    def held_by(self, key: str) -> Held | None:
        """Return where kernels find the constants of a model; None if they are timed in a loop, as by default.

        Args:
            key: Of the job's tuning logs.
        """
        return None

    def kind_holding(self, size: int) -> DeviceKind:
        """Return what times depend on in a model whose constants have so many bytes; by default not on these."""
        return self.log_kind()

    def _keys_here(self) -> set[str]:
        return {kind.key for kind in self.log_kinds()}

    def check_here(self, key: str, submitted_on: str = "") -> None:
        """Check that a job's times belong to this machine. Times of different machines must not share a log.

        Args:
            key: Of the job's tuning logs, from when it was submitted. A key without a digest is not checked.
            submitted_on: The CPU of that machine, if the job names it.

        Raises:
            MachineProblem: This is another machine, or has another TVM.
        """
        if self.is_here(key):
            return
        here = cpu_model()
        then = self.elsewhere
        if submitted_on not in ("", here):
            then = f"on another machine ({submitted_on}; this is {here})"
        raise MachineProblem(
            f"it was submitted {then}, and its times must not be mixed with those of this machine;"
            " continue there, or run: autotune retry JOB --here"
        )

    def build_timeout_s(self, config: Config) -> float:
        """Return the seconds after which the build of one candidate is killed."""
        return config.build.timeout_s

    def measure_timeout_s(self, config: Config) -> float:
        """Return the seconds after which the measurement of one candidate is killed."""
        return config.measure.timeout_s

    def measure_limit_s(self, config: Config, candidates: int) -> float:
        """Return the seconds after which a measurement as a whole is killed; candidates have limits of their own."""
        return _ALLOWANCE_S + _LIMIT_FACTOR * max(1, candidates) * self.measure_timeout_s(config)


def word(text: str) -> str:
    """Return a text as a part of a name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
