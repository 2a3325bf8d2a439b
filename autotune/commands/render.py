"""Text and tables for the terminal: Rich renderables, durations, lines of a journal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.commands import job_status
from autotune.commands.fitted import Fitted, short
from autotune.commands.job_status import JobStatus
from autotune.commands.report.references import title
from autotune.commands.troubles import troubles
from autotune.errors import one_line
from autotune.reasons import sentence
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.journal import (
    ControlVerb,
    Event,
    JobEnded,
    OnEnd,
    StageDone,
    StageEvent,
    StageFailed,
    StageFileDamaged,
    TaskSetAside,
    UnknownEvent,
    UserRequest,
    WaitStarted,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from autotune.commands.report.wall_time import Times
    from autotune.planning.simulator import SimulationResult
    from autotune.processes.messages import ImportAnswer

REQUEST_DONE: dict[ControlVerb, str] = {
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "retry": "to be retried",
}
_MOST_UNUSED = 10  # trials that an export names; its report has all of them
_FOLDED = ("NAME", "WHY")  # a table that fits the terminal folds no other column
_SUFFIXES = {"torch": "pt2", "litert": "tflite"}  # of the model as submitted, by what runs it; else ONNX
_COLOURS = {"running": "cyan", "done": "green", "failed": "red", "held": "yellow", "cancelled": "yellow"}


def duration(seconds: float | None) -> str:
    """Return a duration such as `3 s`, `4:05` or `2:03:10`; a dash for None."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))  # negative if the clock was put back
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _progress(job: JobStatus) -> RenderableType:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=max(1, job.trials_total), completed=job.trials_done, width=16)


def _table(*columns: str, right: Sequence[str] = (), folded: Sequence[str] | None = None) -> Table:
    """Return a table without rows. If `folded` is given, the other columns are never folded."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        whole = folded is not None and column not in folded
        justify: Any = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=whole)
    return table


def _row(table: Table, *cells: RenderableType) -> None:
    """Add a row of plain text, in which nothing is markup and a terminal finds nothing to obey."""
    from rich.text import Text

    table.add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in cells))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Return a table of plain text; the columns named in `right` are aligned to the right."""
    made = _table(*columns, right=right)
    for row in rows:
        _row(made, *row)
    return made


def queue(
    jobs: Sequence[JobStatus],
    daemon: DaemonInfo | None,
    verbose: bool = False,
    sparks: Mapping[int, str] | None = None,
) -> RenderableType:
    """Return the table of `status`, and below it what every CPU and device does.

    Args:
        jobs: The jobs.
        daemon: The daemon, if one runs.
        verbose: Whether names are shown whole, however wide the table becomes.
        sparks: How the latency of jobs fell, by id, for a table that is watched: it has bars of the progress too.
    """
    from rich.console import Group
    from rich.text import Text

    builds = [lambda longest: _queue(jobs, longest, None)]
    if sparks is not None:
        builds.insert(0, lambda longest: _queue(jobs, longest, sparks))
    table = Fitted(builds, [job.name for job in jobs], [_why(job) for job in jobs], verbose)
    if daemon is None or not (daemon.cpus or daemon.nodes):
        return table
    busy = [Text(f"the machine is busy: in a measurement {one_line(daemon.busy)}")] if daemon.busy else []
    return Group(table, "", resources(daemon), *map(Text, troubles(daemon)), *busy)


def _queue(jobs: Sequence[JobStatus], longest: int, sparks: Mapping[int, str] | None) -> Table:
    """Return the table of jobs with names of at most so many characters, with bars and lines if `sparks` are given."""
    from rich.text import Text

    pressed = ["DEADLINE"] if any(job.deadline is not None for job in jobs) else []
    watched = ["PROGRESS", "LATENCY"] if sparks is not None else []
    columns = ["ID", "NAME", "TARGET", "STATE", "TRIALS", *watched, "TASKS SUM", "ETA", *pressed, "WHY"]
    table = _table(*columns, right=("ID", "TRIALS", "ETA"), folded=_FOLDED)
    for job in jobs:
        latency = f"{job.latency_ms:.3f} ms" if job.latency_ms is not None else "-"
        state = Text(job.state, _COLOURS.get(job.state, "default"))
        eta = duration(job.eta_seconds) if not job.ended else "-"
        more = [_progress(job), sparks.get(job.id, "")] if sparks is not None else []
        due = [_deadline(job)] if pressed else []
        _row(table,
            str(job.id), short(job.name, longest), job.target, state, f"{job.trials_done}/{job.trials_total}",
            *more, latency, eta, *due, _why(job),
        )  # fmt: skip
    return table


def _deadline(job: JobStatus) -> str:
    if job.deadline is None:
        return "-"
    at = time.localtime(job.deadline)
    return time.strftime("%H:%M" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", at)


def _why(job: JobStatus) -> str:
    if not job.misses_deadline or job.deadline is None:
        return job.reason
    late = (job.finished_at if job.ended and job.finished_at else time.time() + (job.eta_seconds or 0)) - job.deadline
    said = f"missed its deadline by {duration(late)}" if job.ended else f"will miss its deadline by {duration(late)}"
    return f"{job.reason}; {said}" if job.reason else said


def outcomes(found: Sequence[SimulationResult]) -> RenderableType:
    """Return the table of `simulate`: a row for each policy, and below it why resources were idle."""
    from rich.console import Group

    resources = list(found[0].counts) if found else []
    numbers = ("MAKESPAN", "OVER BOUND", "MEAN END", "WORST END", *(f"{name} BUSY" for name in resources))
    table, idle = _table("POLICY", *numbers, right=numbers), list[str]()
    for outcome in found:
        ends = outcome.completions.values()
        over = f"{outcome.makespan / outcome.bound:.3f}" if outcome.bound else "-"
        mean, worst = sum(ends) / max(1, len(ends)), max(ends, default=0.0)
        shares = [f"{outcome.utilisation(name):.1%}" for name in resources]
        _row(table, outcome.policy, duration(outcome.makespan), over, duration(mean), duration(worst), *shares)
        idle += [line for name in resources if (line := _idle(outcome, name))]
    bound = f"lower bound {duration(max((outcome.bound for outcome in found), default=0.0))}"
    return Group(table, "", bound, *idle)


def _idle(outcome: SimulationResult, resource: str) -> str:
    """Return why a resource was idle, as shares of its time."""
    whole = outcome.counts[resource] * outcome.makespan
    causes = sorted(outcome.idle.get(resource, {}).items(), key=lambda item: -item[1])
    shares = ", ".join(
        f"{cause} {seconds / whole:.1%}" for cause, seconds in causes if whole and seconds / whole > 1e-3
    )
    return f"{outcome.policy}: {resource} idle: {shares}" if shares else ""


def daemon(info: DaemonInfo) -> str:
    """Return the first line of `daemon status`."""
    since, hours = duration(time.time() - info.started_at), f", {info.window} only" if info.window else ""
    stopping = ", stopping" if info.stopping else ""
    paused = f"; paused: {info.trouble}" if info.trouble else ""
    return f"pid {info.identity['pid']}, {info.policy}{hours}, running for {since}{stopping}{paused}"


def resources(daemon: DaemonInfo) -> Fitted:
    """Return a table of what every CPU and device does. The CPUs of one stage share a row; so do the idle ones."""
    table = _table("RESOURCE", "JOB", "TASK", "ROUND", "STAGE", "FOR", right=("JOB", "TASK", "ROUND", "FOR"), folded=())
    now, rows = time.time(), dict[tuple[Any, ...], list[str]]()
    for item in job_status.resources(daemon):
        doing = (item.node, item.job, item.task, item.round, item.stage, item.since)
        kind = "cpu" if item.resource.startswith("cpu ") else item.resource
        rows.setdefault((kind, *doing), []).append(item.resource.removeprefix("cpu "))
    for (kind, node, job, task, round, stage, since), names in rows.items():
        name = f"{node} cpu {_ranges([int(name) for name in names])}".strip() if kind == "cpu" else kind
        numbers = ("" if number is None else str(number) for number in (job, task, round))
        _row(table, name, *numbers, stage or "idle", "" if since is None else duration(now - since))
    return Fitted([lambda _: table])


def _ranges(numbers: list[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3, 6."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def times(found: Sequence[Times]) -> Table:
    """Return the table of `report`: the wall time of each job, and its parts with their share of it."""
    names = [name for name in (found[0].parts if found else ()) if any(job.parts[name] >= 0.05 for job in found)]
    table = _table("ID", "NAME", "STATE", "WALL", *(name.upper() for name in names), right=("ID", "WALL"))
    for job in found:
        parts = [f"{duration(job.parts[name])} {job.parts[name] / max(job.wall_s, 1e-9):.0%}" for name in names]
        _row(table, str(job.id), job.name, job.state, duration(job.wall_s), *parts)
    return table


def tasks(job: JobStatus, verbose: bool = False, peak_gflops: float | None = None) -> RenderableType:
    """Return the table of a job's tasks, for `status JOB`.

    Args:
        job: The job.
        verbose: Whether names are shown whole.
        peak_gflops: What the machine can do at most; None if it was not measured.
    """
    numbers = ("WEIGHT", "TRIALS", "BEST", "SHARE", "GFLOP/S", *(["OF PEAK"] if peak_gflops else []))

    def build(longest: int) -> Table:
        table = _table("TASK", "NAME", *numbers, right=("TASK", *numbers), folded=_FOLDED)
        for index, task in enumerate(job.tasks):
            best = f"{task.best_us:.1f} us" if task.best_us is not None else "-"
            share = f"{task.share:.1%}" if task.share is not None else "-"
            speed = f"{task.gflops:.1f}" if task.gflops is not None else "-"
            name = short(task.name, longest)
            of_peak = [f"{task.gflops / peak_gflops:.0%}" if task.gflops else "-"] if peak_gflops else []
            _row(table, str(index), name, str(task.weight), str(task.trials), best, share, speed, *of_peak)
        return table

    shown = Fitted([build], [task.name for task in job.tasks], verbose=verbose)
    if not job.entries:
        return shown
    from rich.console import Group

    return Group(shown, "", _entries(job))


def _entries(job: JobStatus) -> Table:
    """Return the table of a job's sets of shapes."""
    table = _table("SHAPES", "TASKS SUM", right=("TASKS SUM",))
    for entry in job.entries:
        _row(table, entry.name, "-" if entry.latency_ms is None else f"{entry.latency_ms:.3f} ms")
    return table


def preview(found: ImportAnswer) -> Table:
    """Return the table of the tasks that a submission would tune."""
    table = _table("TASK", "NAME", "SHAPE", "WEIGHT", "GFLOP", "SPACE", right=("TASK", "WEIGHT", "GFLOP", "SPACE"))
    for index, (task, space) in enumerate(zip(found.tasks, found.spaces, strict=True)):
        size = f"{space:.1e}" if space > 99999 else str(space)
        _row(table,
            str(index), task.name, task.shape, str(task.weight), f"{task.gflop:.4f}",
            size if task.tunable else "nothing to tune",
        )  # fmt: skip
    return table


def report(found: dict[str, Any], output: str) -> str:
    """Return what `export` prints when it is done."""
    entries = found.get("entries", [])
    lines = [line for entry in entries for line in (entry["name"], *_latencies(entry))] or _latencies(found)
    moves = found.get("sensitivity")
    lines += [
        f"verified: largest relative error {found['largest_relative_error']:.2g}, {_compared_with(found)}",
        *([f"the model as submitted moves by {moves:.2g} with the last bit of its inputs"] if moves else []),
        *([_loading(found)] if "load_ms" in found else []),
        *(f"not used for {item['task']}: {_unused(item)}" for item in found.get("set_aside", [])[:_MOST_UNUSED]),
        f"wrote {output}: model.so, report.json, run.py"
        + (", cpp/" if found["target"]["kind"] == "llvm" and not found.get("board") else "")
        + (", source/" if found.get("source") else ""),
    ]
    return "\n".join(lines)


def _unused(item: dict[str, Any]) -> str:
    """Say which trial an export has not used, and why."""
    which = f"the trial of {item['best_us']:g} us, candidate {item['hash']}: " if item["hash"] else ""
    return which + str(item["reason"])


def _latencies(found: dict[str, Any]) -> list[str]:
    """Return the lines with the latencies at one set of shapes."""
    latency = found["latency"]
    runtime = found.get("reference", "onnxruntime")
    ours = [
        f"{'untuned':>12}  {latency['untuned_ms']:10.3f} ms   TVM's default, no tuning",
        f"{'tuned':>12}  {latency['tuned_ms']:10.3f} ms   {_times(latency, 'untuned_ms')} as fast as untuned",
    ]
    if latency.get("without_graph_ms") is not None:
        ours.append(
            f"{'no graph':>12}  {latency['without_graph_ms']:10.3f} ms   tuned, its kernels launched one by one"
        )
    if latency.get(f"{runtime}_ms") is None:
        where = "a board" if found.get("board") else "the GPU"
        return [*ours, f"timed on {where}; {title(runtime)} was not timed there"]
    reference_ms, (middle, low, high) = latency[f"{runtime}_ms"], found[f"share_of_{runtime}"]
    share = f"{middle:.2f} of it"
    spread = f"({low:.2f} to {high:.2f} in {found['processes']} processes of each)"
    return [
        *ours,
        f"{title(runtime):>12}  {reference_ms:10.3f} ms   tuned takes {share} {spread}",
    ]


def _compared_with(found: dict[str, Any]) -> str:
    if found["target"]["kind"] == "cuda":
        return f"against {title(found.get('reference', 'onnxruntime'))} on the CPU"
    return f"{found['threads']} threads each"


def _loading(found: dict[str, Any]) -> str:
    """Return the line about loading, memory and files; in brackets the model as submitted, if it was timed."""
    load, memory, size = found["load_ms"], found["memory_mb"], found["size_mb"]
    runtime = found.get("reference", "onnxruntime")
    model = size[_SUFFIXES.get(runtime, "onnx")]
    if load[f"{runtime}_ms"] is None:
        return (
            f"first outputs after {load['tuned_ms']:.0f} ms, peak memory {memory['tuned_ms']:.0f} MB,"
            f" model.so {size['model.so']:.1f} MB"
        )
    return (
        f"first outputs after {load['tuned_ms']:.0f} ms ({load[f'{runtime}_ms']:.0f}), peak memory"
        f" {memory['tuned_ms']:.0f} MB ({memory[f'{runtime}_ms']:.0f}), model.so {size['model.so']:.1f} MB"
        f" ({model:.1f}); in brackets {title(runtime)}"
    )


def _times(latency: dict[str, float], other: str) -> str:
    return f"{latency[other] / latency['tuned_ms']:.1f} times"


def journal_line(event: Event | UnknownEvent) -> str:
    """Return one line of `logs`."""
    try:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
        return one_line(f"{at}  {_told(event)}")
    except (ValueError, OverflowError, OSError):  # no calendar has such a time
        return one_line(event)


def _told(event: Event | UnknownEvent) -> str:
    match event:
        case StageDone():
            return f"{_stage(event)}  {_listed(event.summary)}"
        case StageFailed():
            return f"{_stage(event)}  FAILED reason {event.diagnosis}"
        case StageFileDamaged():
            return f"damaged: reason {event.detail}"
        case WaitStarted():
            return sentence(event.reason)
        case TaskSetAside():
            return f"set aside task {event.task}: reason {event.detail}"
        case UserRequest():
            return REQUEST_DONE[event.verb]
        case JobEnded():
            return f"{event.state}: reason {sentence(event.reason)}" if event.reason else event.state
        case OnEnd():
            return (
                f"the --on-end command is not run: {event.refused}" if event.refused else "the --on-end command starts"
            )
        case UnknownEvent():
            return f"{event.name}: {_listed(event.fields)}" if event.fields else event.name


def _stage(event: StageEvent) -> str:
    return f"{event.kind:<7} task {event.task} round {event.round}  {event.seconds:.2f} s"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
