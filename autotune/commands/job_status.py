"""The status of jobs and of the machine they run on, as data. Reads small files only and writes none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import AutotuneError
from autotune.metric import Metric
from autotune.planning.latency import outside_now, tasks_sum_ms
from autotune.planning.policy import misses
from autotune.planning.view import device_kind, measures_on_cpus
from autotune.reasons import sentence
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, read_confirmation
from autotune.storage.daemon_info import CPUS_APART, DaemonInfo, running_daemon
from autotune.storage.formats import ENDED, JobSpec, JobState, State, TaskProgress, TaskSpec
from autotune.storage.job_files import read_control, read_spec, read_state
from autotune.storage.job_state import Service, state_of
from autotune.storage.paths import JobPaths, Workspace


@dataclass(frozen=True)
class TaskStatus:
    """One task of a job, as shown.

    Attributes:
        share: Its part of the sum of the best times, from 0 to 1; None without a best time.
        gflops: Its speed at the best time, in GFLOP/s; None without a best time or without floating-point work.
        tunable: Whether it gets trials.
    """

    name: str
    weight: int
    trials: int
    best_us: float | None
    share: float | None = None
    gflops: float | None = None
    tunable: bool = True


@dataclass(frozen=True)
class EntryStatus:
    """One set of shapes of a job, and the sum of the best times of the model's tasks at it, in milliseconds.

    `model_ms` is what the whole model takes at it; see `WholeModel`.
    """

    name: str
    latency_ms: float | None
    model_ms: float | None = None


@dataclass(frozen=True)
class WholeModel:
    """What the whole model of a job takes, by its last confirmation. Times are milliseconds of a run.

    If there are several sets of shapes, they are those of one run at each of them.

    Attributes:
        model_ms: The sum of the tasks' best times now, and what the model takes besides its tasks.
        outside_ms: The latter: kernels that have no trials, and calls. It is negative if tasks take longer alone.
        reference: The runtime of the model as submitted, such as `onnxruntime`; empty if it was not timed.
        reference_ms: What the model takes in it; None if it was not timed.
        measured_at: When the confirmation ended, in epoch seconds.
    """

    model_ms: float
    outside_ms: float
    reference: str
    reference_ms: float | None
    measured_at: float


def gflops(gflop: float, best_us: float | None) -> float | None:
    """Return the speed in GFLOP/s of so much work in so many microseconds; None if either is none."""
    return gflop * 1e6 / best_us if gflop and best_us else None


@dataclass(frozen=True)
class JobStatus:
    """One job, as shown.

    Attributes:
        reason: The sentence that says why it is in its state.
        eta_seconds: How long the daemon expects it to take still; None if it expects nothing.
        misses_deadline: Whether it has missed its deadline, or is expected to.
        entries: Its sets of shapes, if there are several.
        metric: What the times of its tasks stand for.
        automatic: Whether its budget follows from its tasks, and it ends earlier when more trials would gain little.
        whole_model: What the whole model takes; None before it was timed.
        not_timed: Why the whole model could not be timed; empty if it could, or nobody tried.
    """

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
    deadline: float | None = None
    misses_deadline: bool = False
    entries: tuple[EntryStatus, ...] = ()
    automatic: bool = False
    metric: Metric = field(default_factory=Metric)
    whole_model: WholeModel | None = None
    not_timed: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def outside_ms(self) -> float | None:
        """What the whole model takes outside of its tasks, in milliseconds; None before it was timed."""
        return self.whole_model.outside_ms if self.whole_model else None

    @property
    def latency_ms(self) -> float | None:
        """The sum of the best times of its tasks, each by its weight, in milliseconds; None while no task has one."""
        return tasks_sum_ms([task.best_us for task in self.tasks], [task.weight for task in self.tasks])

    @property
    def is_partial(self) -> bool:
        """Whether that sum lacks a task which is going to have a time."""
        return any(task.tunable and task.best_us is None and task.weight for task in self.tasks)


def entries_of(
    spec: JobSpec, best_us: Sequence[float | None], confirmed: Confirmation | None = None
) -> tuple[EntryStatus, ...]:
    """Return the sets of shapes of a job, if there are several, with the best times of its tasks so far."""
    timed = {times.name: times for times in (confirmed.entries if confirmed else ())}
    entries = []
    for entry in spec.entries:
        sum_ms = tasks_sum_ms(best_us, entry.weights)
        times = timed.get(entry.name)
        model_ms = None
        if times is not None and sum_ms is not None:
            model_ms = sum_ms + outside_now(times.outside_ms, times.tasks_ms, sum_ms)
        entries.append(EntryStatus(entry.name, sum_ms, model_ms))
    return tuple(entries)


def whole_model_of(sum_ms: float | None, confirmed: Confirmation | None) -> WholeModel | None:
    """Return what the whole model of a job takes, if its tasks take so long together; None if it was not timed."""
    if sum_ms is None or confirmed is None or not confirmed.entries:
        return None
    took_ms = sum(times.outside_ms for times in confirmed.entries)
    outside_ms = outside_now(took_ms, sum(times.tasks_ms for times in confirmed.entries), sum_ms)
    references = [times.reference_ms for times in confirmed.entries if times.reference_ms is not None]
    complete = len(references) == len(confirmed.entries)
    reference = confirmed.entries[0].reference if complete else ""
    return WholeModel(
        max(0.0, sum_ms + outside_ms), outside_ms, reference, sum(references) if complete else None, confirmed.at
    )


def snapshot(workspace: Workspace, jobs: Sequence[JobPaths] | None = None) -> list[JobStatus]:
    """Return the status of these jobs, or of all. A job whose files cannot be read is shown as failed."""
    daemon = running_daemon(workspace)
    return [_job(paths, daemon) for paths in (workspace.job_list() if jobs is None else jobs)]


def _job(paths: JobPaths, daemon: DaemonInfo | None) -> JobStatus:
    try:
        spec = read_spec(paths)
        control = read_control(paths)
        state = read_state(paths)
        confirmed = read_confirmation(paths)
    except AutotuneError as error:
        return _unreadable(paths, str(error))
    shown, reason = state_of(control, state, Service.by(daemon, spec.id))
    now = time.time()
    eta = _eta(spec.id, shown, daemon, now)
    best_us = [task.best_us for task in state.tasks]
    end = state.finished_at if shown in ENDED and state.finished_at else now
    return JobStatus(
        id=spec.id,
        name=spec.name,
        model=spec.model,
        target=spec.board or spec.target_kind,
        state=shown,
        reason=sentence(reason),
        trials_done=state.trials_done,
        trials_total=spec.trials,
        tasks=tuple(_tasks(spec, state)),
        eta_seconds=eta,
        submitted_at=spec.submitted_at,
        finished_at=state.finished_at,
        deadline=spec.deadline,
        misses_deadline=misses(spec.deadline, eta or 0.0, end),
        entries=entries_of(spec, best_us, confirmed),
        automatic=spec.automatic,
        metric=spec.metric,
        whole_model=whole_model_of(tasks_sum_ms(best_us, [task.weight for task in spec.tasks]), confirmed),
        not_timed=confirmed.failed if confirmed else "",
    )


def _eta(job: int, shown: State, daemon: DaemonInfo | None, now: float) -> float | None:
    if daemon is None or shown not in ("running", "waiting") or str(job) not in daemon.ends:
        return None
    return max(0.0, round(daemon.ends[str(job)] - now))


@dataclass(frozen=True)
class ResourceStatus:
    """A CPU or a device, and the stage that runs on it `since` an epoch second, if one does.

    Attributes:
        kind: `cpu`, or the device.
        index: Of a CPU, its number on its machine.
        node: The node of the cluster that it is on; empty for this machine.
    """

    kind: str
    index: int | None = None
    job: int | None = None
    task: int | None = None
    round: int | None = None
    stage: str = ""
    since: float | None = None
    node: str = ""

    @property
    def resource(self) -> str:
        """What it is called: `cpu 3`, or the device."""
        return self.kind if self.index is None else f"{self.kind} {self.index}"


def resources(daemon: DaemonInfo) -> list[ResourceStatus]:
    """Return what each CPU and each device does. Under a policy without leases one may have several stages."""
    statuses = []
    used = [(node.name, node.cpus, node.devices) for node in daemon.nodes if node.state in ("serving", "draining")]
    for node, cpus, devices in used or [("", daemon.cpus, daemon.devices)]:
        places: dict[int | str, tuple[str, int | None]] = {
            cpu: ("cpu", cpu % CPUS_APART if node else cpu) for cpu in cpus
        }
        places |= {device: (device, None) for device in devices if not measures_on_cpus(device_kind(device))}
        for resource, (kind, index) in places.items():
            users = [stage for stage in daemon.running if resource in (*stage.cpus, stage.device)]
            statuses += [
                ResourceStatus(kind, index, item.job, item.task, item.round, item.kind, item.started_at, node)
                for item in users
            ]
            statuses += [] if users else [ResourceStatus(kind, index, node=node)]
    return statuses


def _tasks(spec: JobSpec, state: JobState) -> list[TaskStatus]:
    progress = state.tasks or tuple(TaskProgress() for _ in spec.tasks)
    pairs = list(zip(spec.tasks, progress, strict=False))
    total = sum((done.best_us or 0.0) * task.weight for task, done in pairs)
    return [_task(task, done, total) for task, done in pairs]


def _task(task: TaskSpec, done: TaskProgress, total_us: float) -> TaskStatus:
    best = done.best_us
    share = best * task.weight / total_us if best and total_us else None
    return TaskStatus(task.name, task.weight, done.trials, best, share, gflops(task.gflop, best), task.tunable)


def _unreadable(paths: JobPaths, reason: str) -> JobStatus:
    return JobStatus(paths.id, paths.name, "", "", "failed", reason, 0, 0, (), None, 0.0, None)


def daemon_json(daemon: DaemonInfo) -> dict[str, Any]:
    """Return the documented form of `daemon status --json`."""
    return {
        "version": 1,
        "pid": daemon.identity["pid"],
        "started_at": daemon.started_at,
        "policy": daemon.policy,
        "window": daemon.window,
        "stopping": daemon.stopping,
        "trouble": daemon.trouble,
        "busy": daemon.busy,
        "resources": [_resource_json(item) for item in resources(daemon)],
        "waits": {job: sentence(reason) for job, reason in daemon.waits.items()},
        "nodes": [
            {"name": node.name, "state": node.state, "detail": node.detail, "slowness": dict(node.slowness)}
            for node in daemon.nodes
        ],
        "aside": [formats.to_json(item) for item in daemon.aside],
    }


def _resource_json(item: ResourceStatus) -> dict[str, Any]:
    doing = {key: value for key, value in formats.to_json(item).items() if key not in ("kind", "index")}
    return {"resource": item.resource, **doing}


def to_json(jobs: Sequence[JobStatus]) -> dict[str, Any]:
    """Return the documented form of `status --json`."""
    return {"version": 1, "jobs": [formats.to_json(job) for job in jobs]}
