"""The stages that were handed to the runner and are not reported yet, and what others may run on.

Boards that do not work now are set aside, and tried again after a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from autotune import devices
from autotune.config import Config
from autotune.daemon import capacity
from autotune.daemon.clock import DaemonClock
from autotune.daemon.queued_job import QueuedJob
from autotune.devices import Board
from autotune.machine.leases import lease_holders
from autotune.planning.view import MachineResources, RunningView, Start, device_kind
from autotune.processes.messages import RunStage
from autotune.reasons import Reason
from autotune.storage.daemon_info import DeviceAside
from autotune.workers.stage_runner import StageRunner

_LOG = logging.getLogger("autotune.daemon")
_MAX_S = 600.0
# A daemon that drains the queue waits for boards that have failed less often than this in a row.
_TRIES = 3


@dataclass(frozen=True)
class _Board:
    """A board that has failed `tries` times in a row. It is `aside` until a point in monotonic seconds."""

    reason: str
    until: float
    tries: int
    aside: bool = True


@dataclass
class DevicesAside:
    """Which boards the planner does without."""

    config: Config
    clock: DaemonClock
    shown: tuple[DeviceAside, ...] = ()
    _boards: dict[str, _Board] = field(default_factory=dict)

    def set_aside(self, device: str, reason: str) -> None:
        """Do without a board for a while: longer each time that it fails, up to ten minutes."""
        before = self._boards.get(device)
        tries = 1 if before is None else before.tries + 1
        pause_s = min(self.config.boards[Board.section_of(device_kind(device))].retry_s * 2 ** (tries - 1), _MAX_S)
        self._boards[device] = _Board(reason, self.clock.monotonic() + pause_s, tries)
        self._show()
        _LOG.warning("%s is set aside for %.0f s: %s", device, pause_s, reason)

    def works(self, device: str) -> None:
        """Forget that a board has failed."""
        if self._boards.pop(device, None):
            _LOG.info("%s works again", device)

    def retry(self) -> bool:
        """Let the boards be tried again whose time has come, and return whether there are any."""
        before = self.shown
        for device, board in self._boards.items():
            if board.aside and self.clock.monotonic() >= board.until:
                self._boards[device] = replace(board, aside=False)
                self._show()
        return self.shown != before

    def without(self, machine: MachineResources) -> MachineResources:
        """Return a machine without the boards that are set aside; the same object if there are none."""
        aside = self._aside
        if not aside:
            return machine
        devices = tuple(device for device in machine.devices if device not in aside)
        return replace(machine, devices=devices, nodes=tuple(map(self.without, machine.nodes)))

    def explained(self, waits: dict[int, Reason]) -> dict[int, Reason]:
        """Return why jobs wait, where those without a device are told why their boards are set aside."""
        reasons = {device_kind(aside.device): aside.reason for aside in self.shown}
        explained = {
            job: replace(wait, kind="device-aside", detail=reasons[wait.device])
            for job, wait in (waits.items() if reasons else ())
            if wait.kind in ("no-device", "no-device-on-nodes") and wait.device in reasons
        }
        return {**waits, **explained} if explained else waits

    def hoped_for(self, waits: Iterable[Reason]) -> bool:
        """Return whether a job waits for boards of which one has not failed several times in a row."""
        kinds = {wait.device for wait in waits if wait.kind == "device-aside"}
        return any(board.tries < _TRIES for device, board in self._boards.items() if device_kind(device) in kinds)

    @property
    def _aside(self) -> dict[str, _Board]:
        return {device: board for device, board in self._boards.items() if board.aside}

    def _show(self) -> None:
        now = self.clock.time()
        clock = self.clock.monotonic()
        aside = sorted(self._aside.items())
        self.shown = tuple(DeviceAside(name, board.reason, round(now + board.until - clock)) for name, board in aside)


@dataclass
class RunningStages:
    """What runs now, by the number that the runner reports it under.

    Attributes:
        aside: The boards that nothing runs on for now.
    """

    config: Config
    runner: StageRunner
    aside: DevicesAside
    _views: dict[int, RunningView] = field(default_factory=dict)
    _killed: set[int] = field(default_factory=set)
    _last_id: int = 0

    def __len__(self) -> int:
        return len(self._views)

    @property
    def views(self) -> list[RunningView]:
        """The stages as the planner sees them, in the order in which they were started."""
        return list(self._views.values())

    def machine(self) -> MachineResources:
        """Return what stages may run on, without the boards that are set aside."""
        return self.aside.without(self.runner.machine() or capacity.machine(self.config))

    def start(self, start: Start, job: QueuedJob, now: float) -> None:
        """Hand a stage to the runner.

        Args:
            start: The stage, and what it runs on.
            now: The time in epoch seconds.

        Raises:
            DiskProblem, MachineProblem: The runner could not take it.
        """
        stage = start.stage
        request = self._request(start, job)
        self.runner.run(job.spec.target_kind, request)
        self._views[request.id] = RunningView(stage.id, stage.kind, start.cpus, start.count, start.device, now)
        job.stage_started(now)

    def _request(self, start: Start, job: QueuedJob) -> RunStage:
        stage = start.stage
        # A policy that waits for nobody leases nothing.
        resources = devices.lease_names(self.config, start.cpus, start.device) if start.lease else []
        self._last_id += 1
        return RunStage(
            id=self._last_id,
            job=job.paths.folder.name,
            task=stage.id.task,
            round=stage.id.round,
            kind=stage.kind,
            cpus=start.cpus,
            limit_s=capacity.limit_s(self.config, stage.kind, stage.candidates, devices.of_job(job.spec, self.config)),
            resources=tuple(resources),
            count=start.count,
            device=start.device,
            attempt=job.failures.get(stage.id, 0),
        )

    def end(self, id: int) -> RunningView | None:
        """Forget a stage, which was reported, and return it; None for one that is not known."""
        self._killed.discard(id)
        return self._views.pop(id, None)

    def kill_unless(self, wanted: Callable[[int], bool]) -> None:
        """Kill the stages of jobs that are not wanted any more; the runner reports each of them.

        Args:
            wanted: Returns whether stages of the job of an id may run on.
        """
        for id, view in self._views.items():
            if id not in self._killed and not wanted(view.id.job):
                self._killed.add(id)
                self.runner.kill_stage(id)

    def leased_by_others(self, stage: RunningView) -> Reason:
        """Return why a stage could not run that found its CPUs or its device leased."""
        names = sorted(set(devices.lease_names(self.config, stage.cpus, stage.device)))
        holders = lease_holders(self.config.machine.lock_folder, names)
        return Reason("lease", resources=tuple(names), holders=tuple(map(str, holders)))
