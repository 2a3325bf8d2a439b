"""The stages that were handed to the runner and are not reported yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.planning.view import RunningView
from autotune.processes.messages import RunStage
from autotune.workers.runner import StageRunner


@dataclass
class RunningStages:
    """What runs now, by the number that the runner reports it under."""

    runner: StageRunner
    _views: dict[int, RunningView] = field(default_factory=dict)
    _last_id: int = 0

    def __len__(self) -> int:
        return len(self._views)

    @property
    def views(self) -> list[RunningView]:
        """The stages as the planner sees them, in the order in which they were started."""
        return list(self._views.values())

    def new_id(self) -> int:
        """A number that no stage of this daemon has had."""
        self._last_id += 1
        return self._last_id

    def start(self, target_kind: str, view: RunningView, request: RunStage) -> None:
        """Hand a stage to the runner.

        Raises:
            DiskProblem, MachineProblem: The runner could not take it.
        """
        self.runner.run(target_kind, request)
        self._views[request.id] = view

    def end(self, id: int) -> RunningView | None:
        """Forget a stage, which was reported, and return it; None for one that is not known."""
        return self._views.pop(id, None)

    def kill(self, job: int) -> None:
        """Kill the stages of a job; the runner reports each of them."""
        for id, view in self._views.items():
            if view.id.job == job:
                self.runner.kill_stage(id)
