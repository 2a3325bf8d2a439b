"""Everything that a report says of a job, as data. It is read from the logs, at any moment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.commands import job_status, references, wall_time
from autotune.commands.job_status import JobStatus
from autotune.commands.references import References
from autotune.commands.report import history, knob_importance
from autotune.commands.report.history import BestPoint, FailureCount, LatencyPoint, Outlook, TaskTrials, outlook
from autotune.commands.report.knob_importance import KnobImportance, KnobValues
from autotune.commands.submit.words import options_of, shape_text, write_options
from autotune.commands.wall_time import Times
from autotune.errors import AutotuneError
from autotune.options import InputSpec, JobOptions
from autotune.planning.latency import tasks_sum_ms
from autotune.storage import formats, journal
from autotune.storage.confirmation import Confirmation, read_confirmation
from autotune.storage.formats import JobSpec, TaskSpec
from autotune.storage.job_files import read_spec, read_state
from autotune.storage.journal import StageDone, StageEvent
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.quantisation import Quantisation
from autotune.version import __version__, installed_version


@dataclass(frozen=True)
class TaskReport:
    """One task of a job.

    Attributes:
        trials: Its trials that count towards the job's budget.
        failed: How many of these failed.
        best_us: Its best time in microseconds; None before the first success.
        share: Its part of the sum of the best times, from 0 to 1; None without a best time.
        gflops: Its speed at the best time, in GFLOP/s; None without a best time or without floating-point work.
        curve: Each improvement of its best time.
        knobs: Its knobs, the most important first; none if too few trials have a time.
        knob_values: Its timed trials, the fastest first, with their values of the few most important knobs.
    """

    index: int
    name: str
    shape: str
    weight: int
    gflop: float
    tunable: bool
    trials: int
    failed: int
    best_us: float | None
    share: float | None
    gflops: float | None
    set_aside: str
    curve: tuple[BestPoint, ...]
    knobs: tuple[KnobImportance, ...]
    knob_values: tuple[KnobValues, ...]


@dataclass(frozen=True)
class EntryReport:
    """One set of shapes of a job.

    Attributes:
        inputs: Its inputs, each as `NAME=SHAPE:TYPE`.
        latency_ms: The sum of the best times of the model's tasks at it, in milliseconds.
        exported_ms: What the last export measured at it, in milliseconds, by runtime.
        model_ms: What the whole model takes at it; None before it was timed.
    """

    name: str
    inputs: tuple[str, ...]
    latency_ms: float | None
    exported_ms: dict[str, float]
    model_ms: float | None = None


@dataclass(frozen=True)
class StageRun:
    """A stage that is over. `began` counts in seconds since the submission, and `seconds` is how long it took."""

    kind: formats.Kind
    task: int
    round: int
    began: float
    seconds: float
    cpus: tuple[int, ...]
    device: str
    succeeded: bool


@dataclass(frozen=True, kw_only=True)
class Settings(JobOptions):
    """How a job was submitted, what wrote the report, and the commands that repeat the job."""

    model: str
    target: dict[str, Any]
    target_key: str
    machine: str
    inputs: tuple[str, ...]
    trials: int
    automatic: bool
    versions: dict[str, str]
    commands: tuple[str, ...]
    quantisation: Quantisation | None = None


@dataclass(frozen=True)
class JobReport:
    """One job. Without `settings`, its files cannot be read, and `job.reason` says why.

    `of_commands` says that there is no model: what is tuned are the user's commands.
    """

    job: JobStatus
    times: Times
    latency_ms: float | None = None
    latency: tuple[LatencyPoint, ...] = ()
    references: References | None = None
    tasks: tuple[TaskReport, ...] = ()
    entries: tuple[EntryReport, ...] = ()
    failures: tuple[FailureCount, ...] = ()
    stages: tuple[StageRun, ...] = ()
    outlook: Outlook | None = None
    settings: Settings | None = None
    of_commands: bool = False

    @property
    def trials(self) -> int:
        """The trials that count towards its budget."""
        return sum(task.trials for task in self.tasks)

    def in_words(self, ms: float) -> str:
        """Return a latency of the job with its unit, or what it stands for."""
        return self.job.metric.text(1e3 * ms, f"{ms:.4g} ms")


@dataclass(frozen=True)
class Report:
    """The report of some jobs of a workspace, made `at` an epoch second."""

    workspace: str
    at: float
    jobs: tuple[JobReport, ...] = field(default=())


def gather(workspace: Workspace, jobs: Sequence[JobPaths], now: float) -> Report:
    """Read everything that a report says of these jobs.

    Raises:
        StorageError: A log or a journal cannot be read.
    """
    shown = job_status.snapshot(workspace, jobs)
    times = wall_time.reports(workspace, jobs, now)
    reports = [_job(workspace, *arguments) for arguments in zip(jobs, shown, times, strict=True)]
    return Report(str(workspace.root.absolute()), now, tuple(reports))


def _job(workspace: Workspace, paths: JobPaths, job: JobStatus, times: Times) -> JobReport:
    try:
        spec = read_spec(paths)
    except AutotuneError:
        return JobReport(job, times)
    trials = history.of(workspace, paths).tasks()
    tasks = _tasks(paths, spec, trials)
    exported = references.recall(paths)
    return JobReport(
        job,
        times,
        latency_ms=tasks_sum_ms([task.best_us for task in tasks], [task.weight for task in tasks]),
        latency=history.latency_curve(spec, trials),
        references=exported,
        tasks=tasks,
        entries=_entries(spec, [task.best_us for task in tasks], exported, read_confirmation(paths)),
        failures=history.failures(trials),
        stages=_stages(paths, spec),
        outlook=outlook(spec, trials, [bool(task.set_aside) for task in tasks], times, job.ended, job.outside_ms),
        settings=_settings(spec),
        of_commands=spec.target_kind == formats.COMMAND,
    )


def _entries(
    spec: JobSpec, best_us: Sequence[float | None], exported: References | None, confirmed: Confirmation | None
) -> tuple[EntryReport, ...]:
    pairs = zip(spec.entries, job_status.entries_of(spec, best_us, confirmed), strict=True)
    measured = exported.entries_ms if exported else {}
    return tuple(
        EntryReport(entry.name, _inputs(entry.inputs), shown.latency_ms, measured.get(entry.name, {}), shown.model_ms)
        for entry, shown in pairs
    )


def _inputs(inputs: Sequence[InputSpec]) -> tuple[str, ...]:
    return tuple(f"{item.name}={shape_text(item.shape)}:{item.dtype}" for item in inputs)


def _tasks(paths: JobPaths, spec: JobSpec, trials: Sequence[TaskTrials]) -> tuple[TaskReport, ...]:
    state = read_state(paths)
    aside = [state.tasks[index].set_aside if index < len(state.tasks) else "" for index in range(len(spec.tasks))]
    total = sum(
        (task_trials.best_us or 0.0) * task.weight for task_trials, task in zip(trials, spec.tasks, strict=True)
    )
    return tuple(_task(index, task, trials[index], total, aside[index]) for index, task in enumerate(spec.tasks))


def _task(index: int, task: TaskSpec, trials: TaskTrials, total_us: float, set_aside: str) -> TaskReport:
    best = trials.best_us
    important = knob_importance.importance(trials.all)
    return TaskReport(
        index=index,
        name=task.name,
        shape=task.shape,
        weight=task.weight,
        gflop=task.gflop,
        tunable=task.tunable,
        trials=len(trials.counted),
        failed=trials.failed,
        best_us=best,
        share=best * task.weight / total_us if best and total_us else None,
        gflops=job_status.gflops(task.gflop, best),
        set_aside=set_aside,
        curve=trials.curve(),
        knobs=important,
        knob_values=knob_importance.values(trials.all, [knob.name for knob in knob_importance.shown(important)]),
    )


def _stages(paths: JobPaths, spec: JobSpec) -> tuple[StageRun, ...]:
    events = [event for event in journal.read(paths.journal) if isinstance(event, StageEvent)]
    return tuple(
        StageRun(
            event.kind,
            event.task,
            event.round,
            round(event.began - spec.submitted_at, 3),
            round(max(0.0, event.at - event.began), 3),
            event.cpus,
            event.device,
            isinstance(event, StageDone),
        )
        for event in events
    )


def _settings(spec: JobSpec) -> Settings:
    return Settings(
        **spec.kept(),
        model=spec.model,
        target=spec.target,
        target_key=spec.target_key,
        machine=spec.machine,
        inputs=_inputs(spec.inputs),
        trials=spec.trials,
        automatic=spec.automatic,
        versions=_versions(),
        commands=_commands(spec),
        quantisation=spec.quantisation,
    )


def _versions() -> dict[str, str]:
    """Return the versions of what is installed where the report is written, without loading any of it."""
    import platform

    packages = ("apache-tvm", "apache-tvm-ffi", "xgboost", "onnx", "onnxruntime")
    installed = {name: installed_version(name) or "not installed" for name in packages}
    return {"autotune": __version__, "Python": platform.python_version(), **installed}


def _commands(spec: JobSpec) -> tuple[str, ...]:
    """Return the commands that submit the same job again, run it and export it.

    The new job gets a name by itself, because each name is given once. Its deadline is the next moment at that hour.
    """
    words = ["autotune", "submit", spec.model, *write_options(replace(options_of(spec), fresh=True))]
    export = ["autotune", "export", "last", "--output", f"{spec.name}-again"]
    return shlex.join(words), "autotune daemon run --drain", shlex.join(export)


def to_json(report: Report) -> dict[str, Any]:
    """Return the documented form of `report --json`."""
    return {
        "version": 1,
        "workspace": report.workspace,
        "at": report.at,
        "jobs": [_job_json(job) for job in report.jobs],
    }


def _job_json(report: JobReport) -> dict[str, Any]:
    values = formats.to_json(report)
    del values["job"], values["times"], values["outlook"]
    values["forecast"] = None if report.outlook is None else formats.to_json(report.outlook)
    job = {"reason": report.job.reason, "trials": report.trials, "budget": report.job.trials_total}
    whole = report.job.whole_model
    values["whole_model"] = None if whole is None else formats.to_json(whole)
    return {**formats.to_json(report.times), **job, **values}
