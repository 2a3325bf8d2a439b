"""What the file `.daemon.json` of a workspace holds: the daemon, the stages that it has started, and its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from autotune.reasons import Reason
from autotune.schema import moment
from autotune.storage.formats import Kind


@dataclass(frozen=True)
class RunningStage:
    """A stage that the daemon has started, for `status`."""

    job: int
    task: int
    round: int
    kind: Kind
    cpus: tuple[int, ...]
    started_at: Annotated[float, moment()]
    device: str = ""


# The CPUs of the nodes of a cluster are numbered from multiples of this on.
CPUS_APART = 10_000
NodeState = Literal["joining", "serving", "draining", "refused", "lost"]


@dataclass(frozen=True)
class ClusterNode:
    """A node of a cluster, as its daemon sees it.

    Attributes:
        state: `joining`: it is being prepared; `serving`: stages run on it; `draining`: no more stages are started on
            it, as it will be taken away; `refused`: it cannot be used as it is; `lost`: it does not answer any more.
        detail: Why it is in this state.
        cpus: The numbers that its CPUs have for the daemon.
        measure_cpus: Those of them that are kept for measurements.
        devices: The names that its devices have for the daemon.
        slowness: How many times as long stages take on it as on other nodes, by their kind, where that is much.
    """

    name: str
    state: NodeState
    detail: str = ""
    cpus: tuple[int, ...] = ()
    measure_cpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    slowness: Mapping[Kind, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceAside:
    """A board that does not work now. It is tried again at `until`, in epoch seconds."""

    device: str
    reason: str
    until: Annotated[float, moment()]


@dataclass(frozen=True)
class DaemonInfo:
    """Who the daemon of a workspace is and what it is doing.

    Attributes:
        waits: Why jobs wait, by job id.
        cpus: The CPUs it may use.
        devices: The devices it may use.
        ends: When the jobs are expected to end, in epoch seconds, by job id.
        trouble: Why it starts nothing for now.
        busy: What disturbed the last measurement.
        nodes: The nodes of its cluster; none without one.
        aside: The boards that are set aside.
    """

    FORMAT = ("autotune-daemon", 1)

    identity: dict[str, Any]
    started_at: Annotated[float, moment()]
    policy: str
    stopping: bool = False
    running: tuple[RunningStage, ...] = ()
    waits: dict[str, Reason] = field(default_factory=dict)
    window: str = ""
    cpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    ends: dict[str, Annotated[float, moment()]] = field(default_factory=dict)
    trouble: str = ""
    busy: str = ""
    nodes: tuple[ClusterNode, ...] = ()
    aside: tuple[DeviceAside, ...] = ()
