"""How long stages took in this workspace, kept from one daemon to the next in `logs/estimates.json`.

The file may be lost: if it is missing or damaged, the daemon says so in its log and begins a new one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from autotune.daemon.clock import DaemonClock
from autotune.errors import AutotuneError
from autotune.planning.estimates import Estimates
from autotune.planning.view import JobView, RunningView
from autotune.storage import formats
from autotune.storage.formats import EstimatesFile
from autotune.storage.paths import Workspace

_LOG = logging.getLogger("autotune.daemon")
_SAVE_EVERY_S = 30.0
# How many tasks are kept for each kind of stage and device. The file then has a few hundred kilobytes.
_MOST_TASKS = 2000


@dataclass
class StageTimes:
    """The estimates of a workspace, and the file that keeps them."""

    workspace: Workspace
    estimates: Estimates
    clock: DaemonClock = field(default_factory=DaemonClock)
    _new: bool = False
    _saved_at: float = 0.0

    @classmethod
    def load(cls, workspace: Workspace, clock: DaemonClock | None = None) -> StageTimes:
        """Read what earlier daemons have written. If it cannot be used, begin without any estimates."""
        clock = clock or DaemonClock()
        try:
            means = formats.read(EstimatesFile, workspace.estimates).means
            return cls(workspace, Estimates.from_json({"means": means}), clock)
        except FileNotFoundError:
            _LOG.info("no stage has been timed in this workspace yet: the first forecasts are guesses")
        except (AutotuneError, KeyError, TypeError, ValueError) as error:
            _LOG.warning("learning anew how long stages take: %s cannot be used: %s", workspace.estimates, error)
        return cls(workspace, Estimates(), clock)

    def learn(self, view: JobView, stage: RunningView, summary: dict[str, Any], seconds: float) -> None:
        """Add the duration of a stage that succeeded. `summary` says how many candidates it had."""
        if not seconds:
            return
        count = int(summary.get("built", 0) or summary.get("measured", 0) or 0) + int(summary.get("failed", 0) or 0)
        subjects = (str(view.id), view.tasks[stage.id.task].key)
        self.estimates.add(stage.kind, view.device, subjects, count, seconds)
        self._new = True

    def forget(self, job: int) -> None:
        """Forget the estimates of one job. Those of its tasks stay."""
        self.estimates.forget(str(job))

    def save(self, last: bool = False) -> None:
        """Write new estimates: at most every 30 s, unless this is the `last` time. An error is logged and ignored."""
        now = self.clock.monotonic()
        if not self._new or (now - self._saved_at < _SAVE_EVERY_S and not last):
            return
        self._saved_at = now
        try:
            means = self.estimates.lasting(_MOST_TASKS).to_json()["means"]
            formats.write(self.workspace.estimates, EstimatesFile(tuple(means)))
            self._new = False
        except AutotuneError as error:
            _LOG.warning("could not keep how long stages take: %s", error)
