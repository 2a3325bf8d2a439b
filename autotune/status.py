"""A read-only picture of the queue: what `status` prints and `wait` waits on. Reads small files only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import AutotuneError
from autotune.ledger import read_control, read_state
from autotune.storage import formats
from autotune.storage.formats import ENDED, Control, DaemonInfo, JobSpec, JobState, State, TaskProgress
from autotune.storage.identity import Identity
from autotune.storage.paths import JobPaths, Workspace


@dataclass(frozen=True)
class TaskStatus:
    """One task of a job, as shown."""

    name: str
    weight: int
    trials: int
    best_us: float | None


@dataclass(frozen=True)
class JobStatus:
    """One job, as shown. `reason` says why a waiting job waits and why a failed one failed."""

    id: int
    name: str
    model: str
    target: str
    state: State
    reason: str
    trials_done: int
    trials_total: int
    tasks: tuple[TaskStatus, ...]
    eta_seconds: float | None
    submitted_at: float
    finished_at: float | None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def latency_ms(self) -> float | None:
        """The sum of the best times of its tasks; None while one that can be tuned has none."""
        times = [(task.best_us, task.weight) for task in self.tasks]
        known = [best * weight for best, weight in times if best is not None]
        return sum(known) / 1e3 if known else None


def running_daemon(workspace: Workspace) -> DaemonInfo | None:
    """The daemon that serves this workspace now, if one does."""
    try:
        info = formats.read(DaemonInfo, workspace.daemon_info)
        return info if Identity.from_json(info.identity).alive() else None
    except (FileNotFoundError, AutotuneError):
        return None


def snapshot(workspace: Workspace, jobs: Sequence[JobPaths] | None = None) -> list[JobStatus]:
    """The status of these jobs, or of all. A job whose files cannot be read is shown as failed."""
    daemon = running_daemon(workspace)
    return [_job(paths, daemon) for paths in (workspace.job_list() if jobs is None else jobs)]


def _job(paths: JobPaths, daemon: DaemonInfo | None) -> JobStatus:
    try:
        spec, control, state = formats.read(JobSpec, paths.spec), read_control(paths), read_state(paths)
    except FileNotFoundError:
        return _unreadable(paths, f"{paths.spec} is missing")
    except AutotuneError as error:
        return _unreadable(paths, str(error))
    shown, reason = _state(spec, control, state, daemon)
    return JobStatus(
        id=spec.id,
        name=spec.name,
        model=spec.model,
        target=spec.target_kind,
        state=shown,
        reason=reason,
        trials_done=state.trials_done,
        trials_total=spec.trials,
        tasks=tuple(_tasks(spec, state)),
        eta_seconds=state.eta_seconds if shown == "running" else None,
        submitted_at=spec.submitted_at,
        finished_at=state.finished_at,
    )


def _tasks(spec: JobSpec, state: JobState) -> list[TaskStatus]:
    progress = state.tasks or tuple(TaskProgress() for _ in spec.tasks)
    return [
        TaskStatus(task.name, task.weight, done.trials, done.best_us)
        for task, done in zip(spec.tasks, progress, strict=False)
    ]


def _state(spec: JobSpec, control: Control, state: JobState, daemon: DaemonInfo | None) -> tuple[State, str]:
    """What holds now: the daemon's word, corrected by what the user has asked for since."""
    retried = control.retries > state.retries_seen
    if state.state in ENDED and not retried:
        return state.state, state.reason
    if control.wanted == "cancel":
        return "cancelled", "cancelled"
    if control.wanted == "hold":
        return "held", "held; `autotune release` lets it go on"
    if daemon is None:
        return "waiting", "no daemon is running; start one with `autotune daemon start`"
    if any(running.job == spec.id for running in daemon.running):
        return "running", ""
    waits = daemon.waits.get(str(spec.id), "") or state.reason
    return "waiting", waits or "waits for its turn"


def _unreadable(paths: JobPaths, reason: str) -> JobStatus:
    name = paths.folder.name.split("-", 1)[1]
    return JobStatus(paths.id, name, "", "", "failed", reason, 0, 0, (), None, 0.0, None)


def to_json(jobs: Sequence[JobStatus]) -> dict[str, Any]:
    """The documented form of `status --json`."""
    return {"version": 1, "jobs": [formats.to_json(job) for job in jobs]}
