"""A job of the queue, as Python code sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.api.exported import Exported
from autotune.commands import control
from autotune.commands.export.export import export
from autotune.commands.export.export_options import ExportOptions
from autotune.commands.job_status import JobStatus, snapshot
from autotune.commands.wait import wait
from autotune.config import load_config
from autotune.errors import UnknownJob
from autotune.storage.paths import JobPaths, Workspace


@dataclass(frozen=True)
class Progress:
    """The progress of a job.

    Attributes:
        state: `waiting`, `running`, `held`, `done`, `failed` or `cancelled`.
        reason: Why it waits or how it ended, in one line.
        trials: How many trials it has spent of its budget.
        budget: How many trials it may spend.
        latency_ms: The sum of the best times of its tasks, in milliseconds; None before the first measurement.
        eta_s: In how many seconds the daemon expects it to end; None if that is unknown.
        model_ms: What the whole model takes, in milliseconds; None before it was timed.
        reference_ms: What the model as submitted takes in its own runtime; None if that was not timed.
    """

    state: str
    reason: str
    trials: int
    budget: int
    latency_ms: float | None
    eta_s: float | None
    model_ms: float | None = None
    reference_ms: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the job is done, has failed or was cancelled."""
        return self.state in ("done", "failed", "cancelled")


def _progress(status: JobStatus) -> Progress:
    whole = status.whole_model
    return Progress(
        status.state,
        status.reason,
        status.trials_done,
        status.trials_total,
        status.latency_ms,
        status.eta_seconds,
        whole.model_ms if whole else None,
        whole.reference_ms if whole else None,
    )


@dataclass(frozen=True)
class Job:
    """A job of a workspace. Every call reads the files of the job. `id` and `name` are those of the command line.

    Attributes:
        workspace: The workspace.
        paths: The paths of the job's files.
    """

    workspace: Workspace
    paths: JobPaths

    @property
    def id(self) -> int:
        """The number that the command line shows."""
        return self.paths.id

    @property
    def name(self) -> str:
        """The name that the command line shows."""
        return self.paths.name

    def progress(self) -> Progress:
        """Return the progress of the job now.

        Raises:
            UnknownJob: The job has been removed.
        """
        if not self.paths.folder.exists():
            raise UnknownJob(f"job {self.id} ({self.name}) was removed")
        return _progress(snapshot(self.workspace, [self.paths])[0])

    def watch(self, poll_s: float = 0.5) -> Iterator[Progress]:
        """Yield the progress whenever it changes, until the job has ended; without a daemon that is never.

        Args:
            poll_s: How many seconds to wait between two looks at the job.

        Raises:
            UnknownJob: The job has been removed.
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

        Args:
            timeout_s: The most seconds to wait; None for no limit.

        Returns:
            The progress of the job at its end.

        Raises:
            TimedOut: The job has not ended after `timeout_s`.
        """
        return _progress(wait(self.workspace, [self.paths], timeout_s)[0])

    def cancel(self) -> None:
        """End the job for good. Its trials stay in the tuning logs.

        Raises:
            BadState: The job has ended.
        """
        control.apply(self.workspace, "cancel", [self.paths])

    def hold(self) -> None:
        """Start no more stages of the job until it is released.

        Raises:
            BadState: The job has ended.
        """
        control.apply(self.workspace, "hold", [self.paths])

    def release(self) -> None:
        """Let a held job continue.

        Raises:
            BadState: The job is not held.
        """
        control.apply(self.workspace, "release", [self.paths])

    def retry(self) -> None:
        """Start a failed or cancelled job again. It keeps its trials.

        Raises:
            BadState: The job has neither failed nor been cancelled.
        """
        control.apply(self.workspace, "retry", [self.paths])

    def export(
        self,
        output: str | Path,
        progress: Callable[[str], None] = lambda step: None,
        *,
        source: bool = False,
        untuned: bool = False,
        quick: bool = False,
        retime: bool = False,
        again: bool = False,
        frozen: bool = False,
        threads: int | Literal["auto"] | None = None,
    ) -> Exported:
        """Compile the model with the best schedules so far, verify it, time it and write it to a folder.

        Args:
            output: The folder. It is made if it does not exist.
            progress: Called with a description of each step when it starts.
            source: Whether to write the network as C++ source, too.
            untuned: Whether to time the model with TVM's default schedules, too.
            quick: Whether to write the library as soon as it is verified, and to time nothing.
            retime: Whether to time the best kernels again though the queue has timed them in the context of the model.
            again: Whether to compile, verify and time it again though nothing has changed since the last export.
            frozen: Whether to make the library again by the lock file in `output`: every choice is in it, and nothing
                is timed.
            threads: For how many threads the library is; `auto` for as many as make it fastest. By default as it was
                tuned.

        Returns:
            The exported library.

        Raises:
            VerificationError: The outputs differ from those of the model as submitted. Nothing was written.
            BadInput: `output` cannot be written to, or `quick` or `frozen` was asked for with `untuned` or `retime`, or
                there is no lock file for `frozen`.
            BadState: The lock file is for another job.
            ModelError: `source` was asked for, and the model has something that cannot be written as source.
        """
        folder = Path(output)
        config = load_config(self.workspace.config)
        options = ExportOptions(
            source=source,
            untuned=untuned,
            quick=quick,
            retime=retime,
            again=again,
            frozen=frozen,
            threads=threads,
        )
        report = export(self.workspace, config, self.paths, folder, progress, options)
        return Exported(folder, report)
