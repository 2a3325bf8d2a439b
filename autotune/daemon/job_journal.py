"""Write a job's journal. Work goes on if it cannot be written."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import StorageError
from autotune.planning.view import RunningView
from autotune.planning.worked_time import WorkedTime
from autotune.processes.messages import StageReport
from autotune.reasons import Reason, WaitTopic
from autotune.storage import journal
from autotune.storage.journal import Event, StageDone, StageEvent, StageFailed, UnknownEvent, WaitStarted
from autotune.storage.paths import JobPaths

_LOG = logging.getLogger("autotune.daemon")


@dataclass
class JobJournal:
    """The journal of one job, as the daemon writes it.

    Attributes:
        worked: How long its stages have run, those that are over.
    """

    paths: JobPaths
    worked: WorkedTime = field(default_factory=WorkedTime)
    _topic: WaitTopic | None = "turn"

    def __post_init__(self) -> None:
        self._log = journal.log_of(self.paths.journal)  # kept, for it need not check what it has written itself

    def recall(self, since: float) -> None:
        """Read from the file how long stages have run that ended after `since`, an epoch second.

        Raises:
            StorageError: The journal cannot be read.
        """
        self.worked = WorkedTime()
        for event in journal.read(self.paths.journal):
            if event.at > since:
                self._count(event)

    def _count(self, event: Event | UnknownEvent) -> None:
        if isinstance(event, StageEvent):
            self.worked.add(event.began, event.at)

    def append(self, event: Event) -> None:
        """Add an event. An error is logged and ignored."""
        self._count(event)
        try:
            self._log.append([journal.record_of(event)])
        except StorageError as error:
            _LOG.warning("%s", error)

    def stage_done(self, stage: RunningView, report: StageReport, facts: Mapping[str, Any]) -> None:
        """Add a stage that succeeded, and the facts that it reports of its work."""
        self.append(StageDone(**_place(stage, report), summary=dict(facts)))

    def stage_failed(self, stage: RunningView, report: StageReport) -> str:
        """Add a stage that failed.

        Returns:
            The diagnosis: what failed, how and why, in one line.
        """
        event = StageFailed(**_place(stage, report), outcome=report.outcome, detail=report.reason)
        self.append(event)
        return event.diagnosis

    def waiting(self, reason: Reason) -> None:
        """Add why the job waits, if it waits for something else than before."""
        if reason.topic != self._topic:
            self._topic = reason.topic
            self.append(WaitStarted(reason))


def _place(stage: RunningView, report: StageReport) -> dict[str, Any]:
    return {
        "kind": stage.kind,
        "task": stage.id.task,
        "round": stage.id.round,
        "began": round(stage.started_at + report.waited, 3),
        "seconds": report.seconds,
        "cpus": stage.cpus,
        "device": stage.device,
    }
