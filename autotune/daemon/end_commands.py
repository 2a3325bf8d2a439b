"""Start the commands that users gave for the end of their jobs (`submit --on-end`), and wait for none of them."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.config import Config
from autotune.daemon.queued_job import QueuedJob
from autotune.errors import DiskProblem, StorageError
from autotune.planning.latency import tasks_sum_ms
from autotune.reasons import sentence
from autotune.storage import journal
from autotune.storage.job_files import is_own, read_spec
from autotune.storage.journal import JobEnded, OnEnd
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.private_folders import distrust

_LOG = logging.getLogger("autotune.daemon")
_KILL_AFTER_S = 5


@dataclass
class EndCommands:
    """Starts a command once for each end of its job, at most, also if the daemon is killed meanwhile."""

    workspace: Workspace
    config: Config
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, job: QueuedJob) -> None:
        """Start the command of a job that has ended, unless that was done before. What keeps it from that is logged.

        Raises:
            DiskProblem: The disk takes no line of the journal now. Nothing was started.
        """
        self._running = [process for process in self._running if process.poll() is None]
        if not job.spec.on_end:
            return
        try:
            refused = self._start_once(job)
        except (StorageError, OSError, ValueError) as error:
            if isinstance(error, DiskProblem) and error.passing:
                raise
            refused = str(error)
        if refused:
            _LOG.error("%s: its --on-end command is not run: %s", job.paths.folder.name, refused)

    def _start_once(self, job: QueuedJob) -> str:
        """Start the command if it is due, and return why it must not be started; empty if it may be."""
        if not _is_due(job.paths):
            return ""
        refused = distrust(job.paths.folder) or distrust(job.paths.spec) or _unsealed(job.paths)
        # In the journal first: after a kill in between, the command is not started rather than started twice.
        journal.append(job.paths.journal, OnEnd(refused=refused))
        if not refused and (command := read_spec(job.paths).on_end):
            self._spawn(job.paths, command, _facts(self.workspace, job))
        return refused

    def _spawn(self, paths: JobPaths, command: str, facts: Mapping[str, str]) -> None:
        """Start a command in a session of its own, with a time limit that holds without the daemon too."""
        limit = ["timeout", "-k", str(_KILL_AFTER_S), f"{self.config.daemon.on_end_timeout_s:g}"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(paths.on_end_log, flags, 0o600)
        try:
            process = subprocess.Popen(
                [*limit, "/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.workspace.root,
                env={**os.environ, **facts},
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._running.append(process)


def _is_due(paths: JobPaths) -> bool:
    """Return whether nothing was decided about the command since the job last ended."""
    events = [event for event in journal.read(paths.journal) if isinstance(event, (JobEnded, OnEnd))]
    return not events or isinstance(events[-1], JobEnded)


def _unsealed(paths: JobPaths) -> str:
    """Return why the command is not this user's, as in a copied workspace; empty if it is."""
    if is_own(read_spec(paths)):
        return ""
    return f"{paths.spec} was not written by this user's autotune; submit the model again with --on-end"


def _facts(workspace: Workspace, job: QueuedJob) -> dict[str, str]:
    """Return what the command finds in its environment."""
    state = job.state
    reason = job.state.reason
    latency = _latency_ms(job)
    return {
        "AUTOTUNE_WORKSPACE": str(workspace.root.absolute()),
        "AUTOTUNE_JOB": str(job.id),
        "AUTOTUNE_NAME": job.spec.name,
        "AUTOTUNE_MODEL": job.spec.model,
        "AUTOTUNE_STATE": state.state,
        "AUTOTUNE_REASON": reason.kind if reason else "",
        "AUTOTUNE_MESSAGE": sentence(reason),
        "AUTOTUNE_TRIALS": str(state.trials_done),
        "AUTOTUNE_LATENCY_MS": "" if latency is None else f"{latency:.6g}",
    }


def _latency_ms(job: QueuedJob) -> float | None:
    """Return what the whole model was measured to take when it was found fast enough, or else the sum of its tasks."""
    if job.state.reason is not None and job.state.reason.latency_ms is not None:
        return job.state.reason.latency_ms
    return tasks_sum_ms([task.best_us for task in job.state.tasks], [task.weight for task in job.spec.tasks])
