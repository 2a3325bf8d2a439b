"""Which daemon serves a workspace and what it does, by `.daemon.json`, and when daemons did, by `logs/daemon.jsonl`.

The latter has a line for each start and for each stop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from autotune.errors import AutotuneError, StorageError
from autotune.reasons import Reason
from autotune.schema import moment
from autotune.storage import formats
from autotune.storage.disk_space import disk_trouble
from autotune.storage.formats import Kind
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog

_LOG = logging.getLogger("autotune.daemon")
_UPTIME = ("autotune-attendance", 1)
# The CPUs of the nodes of a cluster are numbered from multiples of this on.
CPUS_APART = 10_000
NodeState = Literal["joining", "serving", "draining", "refused", "lost"]


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


def running_daemon(workspace: Workspace) -> DaemonInfo | None:
    """The daemon that serves this workspace now, if one does."""
    try:
        info = formats.read(DaemonInfo, workspace.daemon_info)
        identity = Identity.from_json(info.identity)
        if not identity.alive():
            return None
        if identity.stopped():
            return replace(info, trouble=f"its process is stopped; run: kill -CONT {identity.pid}")
        return info if info.trouble else replace(info, trouble=disk_trouble(workspace.jobs))
    except (FileNotFoundError, AutotuneError):
        return None


def holder(workspace: Workspace) -> str:
    """Who serves a workspace, as far as its file says: ` (pid 7 on host)`, or nothing."""
    try:
        identity = formats.read(DaemonInfo, workspace.daemon_info).identity
        return f" (pid {identity['pid']} on {identity['host']})"
    except (FileNotFoundError, AutotuneError, KeyError):
        return ""


def note_start(workspace: Workspace) -> None:
    """Note that a daemon starts, and when the one before, if it was killed, last wrote its status file."""
    record: dict[str, object] = {"event": "started"}
    try:
        _note(workspace, record | {"seen": round(workspace.daemon_info.stat().st_mtime, 3)})
    except FileNotFoundError:
        _note(workspace, record)


def note_stop(workspace: Workspace) -> None:
    """Note that the daemon stops."""
    _note(workspace, {"event": "stopped"})


def _note(workspace: Workspace, record: dict[str, object]) -> None:
    try:
        RecordLog(workspace.uptime, *_UPTIME).append([{"at": round(time.time(), 3), **record}])
    except StorageError as error:
        _LOG.warning("%s", error)


def times_served(workspace: Workspace) -> list[tuple[float, float]]:
    """Return when daemons served, as pairs of epoch seconds, oldest first. If one has not stopped, its end is infinity.

    Raises:
        StorageError: The file cannot be read.
    """
    periods: list[tuple[float, float]] = []
    for record in RecordLog(workspace.uptime, *_UPTIME).read():
        noted_at = float(record["at"])
        if periods and periods[-1][1] == math.inf:  # which has stopped, or was killed and last seen some time before
            started_at, _ = periods.pop()
            ended_at = min(noted_at, float(record.get("seen", noted_at)))
            periods.append((started_at, max(started_at, ended_at)))
        if record["event"] == "started":
            periods.append((noted_at, math.inf))
    return periods
