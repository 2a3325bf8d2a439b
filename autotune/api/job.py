"""A job of the queue, as Python code sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune import config as settings
from autotune.api.exported import Exported
from autotune.commands import control
from autotune.commands.export import export
from autotune.commands.status import JobStatus, snapshot
from autotune.commands.wait import wait
from autotune.errors import UnknownJob
from autotune.storage.paths import JobPaths, Workspace


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        state: `waiting`, `running`, `held`, `done`, `failed` or `cancelled`.
        reason: why it waits, or how it ended; one line.
        trials: trials that count towards the budget.
        budget: the budget, in trials.
        latency_ms: the sum of the best times of the tasks, in milliseconds; None before the first time.
        eta_s: seconds until the daemon expects the job to end; None where it cannot say.
    """

    state: str
    reason: str
    trials: int
    budget: int
    latency_ms: float | None
    eta_s: float | None

    @property
    def ended(self) -> bool:
        """Whether the job is done, has failed or was cancelled."""
        return self.state in ("done", "failed", "cancelled")


def _progress(status: JobStatus) -> Progress:
    return Progress(
        status.state, status.reason, status.trials_done, status.trials_total, status.latency_ms, status.eta_seconds
    )


@dataclass(frozen=True)
class Job:
    """One job of a workspace. Holds no state of its own: every call reads the files of the job."""

    workspace: Workspace
    paths: JobPaths

    @property
    def id(self) -> int:
        """The number that the command line shows."""
        return self.paths.id

    @property
    def name(self) -> str:
        """The name that the command line shows."""
        return self.paths.folder.name.split("-", 1)[1]

    def progress(self) -> Progress:
        """How far the job is now.

        Raises:
            UnknownJob: it was removed meanwhile.
        """
        if not self.paths.folder.exists():
            raise UnknownJob(f"job {self.id} ({self.name}) was removed")
        return _progress(snapshot(self.workspace, [self.paths])[0])

    def watch(self, poll_s: float = 0.5) -> Iterator[Progress]:
        """Yield the progress whenever it has changed, and last when the job has ended.

        Waits for ever while no daemon serves the workspace; `progress.reason` says so.
        """
        last: Progress | None = None
        while last is None or not last.ended:
            now = self.progress()
            if now != last:
                yield now
            last = now
            time.sleep(0.0 if now.ended else poll_s)

    def wait(self, timeout_s: float | None = None) -> Progress:
        """Block until the job has ended.

        Raises:
            TimedOut: it has not within `timeout_s`.
        """
        return _progress(wait(self.workspace, [self.paths], timeout_s)[0])

    def cancel(self) -> None:
        """End the job for good; its trials stay known. Raises `BadState` when it has ended."""
        control.apply(self.workspace, "cancel", [self.paths])

    def hold(self) -> None:
        """Start no more stages of the job until it is released. Raises `BadState` when it has ended."""
        control.apply(self.workspace, "hold", [self.paths])

    def release(self) -> None:
        """Let a held job go on. Raises `BadState` when it is not held."""
        control.apply(self.workspace, "release", [self.paths])

    def retry(self) -> None:
        """Start a failed or cancelled job again, from the trials it has. Raises `BadState` for any other."""
        control.apply(self.workspace, "retry", [self.paths])

    def export(self, output: str | Path, progress: Callable[[str], None] = lambda step: None) -> Exported:
        """Compile the best so far, verify it, compare it and write it to a folder.

        Args:
            output: the folder, which is made if it is missing.
            progress: told each step.

        Raises:
            VerificationError: the outputs differ from the model's; nothing was written.
            BadInput: `output` cannot be written to.
        """
        folder = Path(output)
        report = export(self.workspace, settings.load(self.workspace.config), self.paths, folder, progress)
        return Exported(folder, report)
