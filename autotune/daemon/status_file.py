"""The status file of the daemon, `jobs/.daemon.json`: what runs where, why jobs wait, when they are to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.daemon.clock import DaemonClock
from autotune.planning.planner import Planner
from autotune.planning.view import RunningView
from autotune.planning.windows import Hours
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.daemon_formats import ClusterNode, DaemonInfo, DeviceAside, RunningStage
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace

_FORECAST_EVERY_S = 5.0


@dataclass
class StatusFile:
    """What the daemon last wrote of itself. The file is written only when something has changed."""

    workspace: Workspace
    hours: Hours
    info: DaemonInfo
    clock: DaemonClock
    _forecast_at: float = 0.0
    _active: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def begin(cls, workspace: Workspace, hours: Hours, policy: str, window: str, clock: DaemonClock) -> StatusFile:
        """Write who serves the workspace.

        Raises:
            DiskProblem: The file cannot be written.
        """
        info = DaemonInfo(Identity.current().to_json(), clock.time(), policy, window=window)
        formats.write(workspace.daemon_info, info)
        return cls(workspace, hours, info, clock)

    def publish(
        self,
        planner: Planner | None,
        running: Sequence[RunningView],
        waits: Mapping[int, Reason],
        stopping: bool,
        trouble: str,
        busy: str,
        nodes: tuple[ClusterNode, ...] = (),
        aside: tuple[DeviceAside, ...] = (),
    ) -> None:
        """Write the file, if anything in it has changed.

        Args:
            planner: The planner; None before the first plan.
            running: The stages that run.
            waits: Why jobs wait, by id.
            stopping: Whether the daemon starts nothing more.
            trouble: Why it pauses; empty if it does not.
            busy: What disturbed the last measurement; empty if nothing did.
            nodes: The nodes of the cluster; none without one.
            aside: The boards that are set aside.

        Raises:
            DiskProblem: The file could not be written. The next call tries again.
        """
        stages = tuple(RunningStage(*view.id, view.kind, view.cpus, view.started_at, view.device) for view in running)
        by_id = {str(job): reason for job, reason in waits.items()}
        info = replace(self.info, stopping=stopping, running=stages, waits=by_id, trouble=trouble, busy=busy)
        if planner is not None:
            machine = planner.machine
            info = replace(info, cpus=machine.cpus, devices=machine.devices, ends=self._ends(planner, running))
        info = replace(info, nodes=nodes, aside=aside)
        if info != self.info:
            formats.write(self.workspace.daemon_info, info)
            self.info = info

    def _ends(self, planner: Planner, running: Sequence[RunningView]) -> dict[str, float]:
        """Return when the jobs are expected to end: a new forecast every few seconds, or when a job came or went."""
        active, clock = planner.jobs, self.clock.monotonic()
        if active == self._active and clock - self._forecast_at < _FORECAST_EVERY_S:
            return self.info.ends
        self._active, self._forecast_at, now = active, clock, self.clock.time()
        seconds = planner.forecast(now, running)
        return {str(job): round(self.hours.after(now, left)) for job, left in sorted(seconds.items())}
