"""The stages that were handed to the runner and are not reported yet, and what others may run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune import devices
from autotune.config import Config
from autotune.daemon import capacity
from autotune.daemon.devices_aside import DevicesAside
from autotune.daemon.queued_job import QueuedJob
from autotune.machine.leases import lease_holders
from autotune.planning.view import MachineResources, RunningView, Start
from autotune.processes.messages import RunStage
from autotune.reasons import Reason
from autotune.workers.runner import StageRunner


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
            job: Its job.
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
