"""Text and tables for the terminal: Rich renderables, durations, lines of a journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune.commands import job_status
from autotune.commands.durations import duration
from autotune.commands.job_status import JobStatus
from autotune.commands.references import KernelLimit, title
from autotune.errors import one_line
from autotune.storage.daemon_info import ClusterNode, DaemonInfo, DeviceAside
from autotune.storage.journal import ControlVerb

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from autotune.commands.wall_time import Times
    from autotune.processes.messages import ImportAnswer


REQUEST_DONE: dict[ControlVerb, str] = {
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "retry": "to be retried",
}
_FOLDED = ("NAME", "WHY")  # a table that fits the terminal folds no other column
_MIN_NAME_LENGTH = 12
# What a sentence gets where there is little room; the rest of it is folded.
_SENTENCE = 24
_NARROWEST = 8  # columns of names and sentences that are folded to less are no longer read
_ENDLESS = 100_000
_GAP = "  "
_EMPTY = ("", "-")
_COLOURS = {"running": "cyan", "done": "green", "failed": "red", "held": "yellow", "cancelled": "yellow"}


def _trials(job: JobStatus) -> str:
    """Return the trials of a job out of its budget, and those beyond it: of rounds that ran, or known from before."""
    beyond = job.trials_done - job.trials_total
    return f"{min(job.trials_done, job.trials_total)}/{job.trials_total}{f' +{beyond}' if beyond > 0 else ''}"


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
    jobs: Sequence[JobStatus], daemon: DaemonInfo | None, verbose: bool = False, sparks: Mapping[int, str] | None = None
) -> RenderableType:
    """Return the table of `status`, and below it what every CPU and device does.

    Args:
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
    whole = ["MODEL"] if any(job.whole_model is not None for job in jobs) else []
    columns = ["ID", "NAME", "TARGET", "STATE", "TRIALS", *watched, "TASKS SUM", *whole, "ETA", *pressed, "WHY"]
    table = _table(*columns, right=("ID", "TRIALS", "ETA", "MODEL"), folded=_FOLDED)
    for job in jobs:
        least = ">" if job.is_partial else ""
        latency = f"{least}{_latency(job, job.latency_ms)}" if job.latency_ms is not None else "-"
        state = Text(job.state, _COLOURS.get(job.state, "default"))
        eta = duration(job.eta_seconds) if not job.ended else "-"
        more = [_progress(job), sparks.get(job.id, "")] if sparks is not None else []
        due = [_deadline(job)] if pressed else []
        _row(table,
            str(job.id), short(job.name, longest), job.target, state, _trials(job),
            *more, latency, *([_model(job)] if whole else []), eta, *due, _why(job),
        )  # fmt: skip
    return table


def _latency(job: JobStatus, ms: float) -> str:
    return job.metric.text(1e3 * ms, f"{ms:.3f} ms")


def _model(job: JobStatus) -> str:
    return "-" if job.whole_model is None else f"{job.whole_model.model_ms:.3f} ms"


def whole_model(job: JobStatus) -> str:
    """Return what the whole model of a job takes, and the model as submitted, in a sentence; empty before it was timed.

    It says what the model takes outside of its tasks, or why it could not be timed.
    """
    timed = job.whole_model
    if timed is None or job.latency_ms is None:
        return f"the whole model could not be timed: {job.not_timed}" if job.not_timed else ""
    outside = f" and {timed.outside_ms:.4g} ms outside of them" if timed.outside_ms > 0 else ""
    most = ", which no trial shortens" if timed.outside_ms > job.latency_ms else ""
    says = f"the whole model takes {timed.model_ms:.4g} ms: {job.latency_ms:.4g} ms in its tasks{outside}{most}"
    if timed.reference_ms is None:
        return says
    ratio = timed.model_ms / timed.reference_ms
    return f"{says}; {title(timed.reference)} takes {timed.reference_ms:.4g} ms, and the tuned model {ratio:.2f} of it"


def _deadline(job: JobStatus) -> str:
    if job.deadline is None:
        return "-"
    moment = time.localtime(job.deadline)
    return time.strftime("%H:%M" if moment[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", moment)


def _why(job: JobStatus) -> str:
    if not job.misses_deadline or job.deadline is None:
        return job.reason
    late = (job.finished_at if job.ended and job.finished_at else time.time() + (job.eta_seconds or 0)) - job.deadline
    said = f"missed its deadline by {duration(late)}" if job.ended else f"will miss its deadline by {duration(late)}"
    return f"{job.reason}; {said}" if job.reason else said


def daemon(info: DaemonInfo) -> str:
    """Return the first line of `daemon status`."""
    since = duration(time.time() - info.started_at)
    hours = f", {info.window} only" if info.window else ""
    stopping = ", stopping" if info.stopping else ""
    paused = f"; paused: {info.trouble}" if info.trouble else ""
    return f"pid {info.identity['pid']}, {info.policy}{hours}, running for {since}{stopping}{paused}"


def resources(daemon: DaemonInfo) -> Fitted:
    """Return a table of what every CPU and device does. The CPUs of one stage share a row; so do the idle ones."""
    table = _table("RESOURCE", "JOB", "TASK", "ROUND", "STAGE", "FOR", right=("JOB", "TASK", "ROUND", "FOR"), folded=())
    now = time.time()
    rows = dict[tuple[Any, ...], list[int]]()
    for item in job_status.resources(daemon):
        doing = (item.node, item.job, item.task, item.round, item.stage, item.since)
        cpus = rows.setdefault((item.kind, *doing), [])
        if item.index is not None:
            cpus.append(item.index)
    for (kind, node, job, task, round, stage, since), cpus in rows.items():
        name = f"{node} cpu {_ranges(cpus)}".strip() if cpus else kind
        numbers = ("" if number is None else str(number) for number in (job, task, round))
        _row(table, name, *numbers, stage or "idle", "" if since is None else duration(now - since))
    return Fitted([lambda _: table])


def _ranges(numbers: list[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3, 6."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def times(jobs: Sequence[Times]) -> Table:
    """Return the table of `report`: the wall time of each job, and its parts with their share of it."""
    names = [name for name in (jobs[0].parts if jobs else ()) if any(job.parts[name] >= 0.05 for job in jobs)]
    table = _table("ID", "NAME", "STATE", "WALL", *(name.upper() for name in names), right=("ID", "WALL"))
    for job in jobs:
        shares = [f"{duration(job.parts[name])} {job.parts[name] / max(job.wall_s, 1e-9):.0%}" for name in names]
        _row(table, str(job.id), job.name, job.state, duration(job.wall_s), *shares)
    return table


def tasks(job: JobStatus, verbose: bool = False, limits: Mapping[str, KernelLimit] | None = None) -> RenderableType:
    """Return the table of a job's tasks, for `status JOB`.

    Args:
        verbose: Whether names are shown whole.
        limits: What the machine allows each task, by its name; none where it was not measured.
    """
    limits = limits or {}
    numbers = ("WEIGHT", "TRIALS", "BEST", "SHARE", "GFLOP/S", *(["OF LIMIT"] if limits else []))

    def build(longest: int) -> Table:
        table = _table("TASK", "NAME", *numbers, right=("TASK", *numbers), folded=_FOLDED)
        for index, task in enumerate(job.tasks):
            best = job.metric.text(task.best_us, f"{task.best_us:.1f} us") if task.best_us is not None else "-"
            share = f"{task.share:.1%}" if task.share is not None else "-"
            speed = f"{task.gflops:.1f}" if task.gflops is not None else "-"
            name = short(task.name, longest)
            limit = limits.get(task.name)
            reached = limit.reached(task.best_us) if limit and task.best_us else "-"
            of_limit = [reached] if limits else []
            _row(table, str(index), name, str(task.weight), str(task.trials), best, share, speed, *of_limit)
        return table

    shown = Fitted([build], [task.name for task in job.tasks], verbose=verbose)
    if not job.entries:
        return shown
    from rich.console import Group

    return Group(shown, "", _entries(job))


def _entries(job: JobStatus) -> Table:
    """Return the table of a job's sets of shapes."""
    table = _table("SHAPES", "TASKS SUM", "MODEL", right=("TASKS SUM", "MODEL"))
    for entry in job.entries:
        times = ("-" if ms is None else f"{ms:.3f} ms" for ms in (entry.latency_ms, entry.model_ms))
        _row(table, entry.name, *times)
    return table


def preview(answer: ImportAnswer) -> Table:
    """Return the table of the tasks that a submission would tune."""
    table = _table("TASK", "NAME", "SHAPE", "WEIGHT", "GFLOP", "SPACE", right=("TASK", "WEIGHT", "GFLOP", "SPACE"))
    for index, (task, space) in enumerate(zip(answer.tasks, answer.spaces, strict=True)):
        size = f"{space:.1e}" if space > 99999 else str(space)
        _row(table,
            str(index), task.name, task.shape, str(task.weight), f"{task.gflop:.4f}",
            size if task.tunable else "nothing to tune",
        )  # fmt: skip
    return table


def troubles(daemon: DaemonInfo) -> list[str]:
    """Return a line for each node that takes no stages or is slow, and for each board that is set aside."""
    nodes = filter(None, map(_of_node, daemon.nodes))
    return [one_line(line) for line in (*nodes, *map(_of_board, daemon.aside))]


def _of_board(board: DeviceAside) -> str:
    until = time.strftime("%H:%M:%S", time.localtime(board.until))
    return f"{board.device} is set aside until {until}: {board.reason}"


def _of_node(node: ClusterNode) -> str:
    """Return what is wrong with a node; empty if nothing is."""
    if node.state != "serving":
        return f"node {node.name} is {node.state}{': ' + node.detail if node.detail else ''}"
    slow = ", ".join(f"{kind} takes {times} times as long" for kind, times in node.slowness.items())
    return f"node {node.name} is slow: compared with other nodes, {slow}" if slow else ""


def short(name: str, longest: int) -> str:
    """Return a name of at most so many characters. A long one loses its middle, since names differ at both ends."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[len(name) - half :]}"


class Fitted:
    """A table whose names are clipped as far as it takes to fit the terminal."""

    def __init__(
        self,
        builds: Sequence[Callable[[int], Table]],
        names: Sequence[str] = (),
        sentences: Sequence[str] = (),
        verbose: bool = False,
    ) -> None:
        """Take what makes the table with names of at most so many characters.

        Args:
            builds: Each makes the table; the first that fits is shown, or else the last. The last has plain text only.
            sentences: The texts in it that may be folded.
            verbose: Whether names stay whole in any case.
        """
        self._builds = builds
        self._verbose = verbose
        self._longest = max(map(len, names), default=0)
        self._sentence = max(map(len, sentences), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        """Yield the table for this console, or its rows one below the other."""
        spare = max(0, self._longest - _MIN_NAME_LENGTH)
        for build in self._builds:
            excess = self._excess(build, _SENTENCE, console, options)
            if excess <= spare:
                break
        if self._excess(build, _NARROWEST, console, options) > max(0, self._longest - _NARROWEST):
            yield from _one_below_the_other(build(self._longest), options.max_width)
        elif not excess or self._verbose:
            yield build(self._longest)
        else:
            yield build(max(_MIN_NAME_LENGTH, self._longest - excess))

    def _excess(self, build: Callable[[int], Table], sentence: int, console: Console, options: ConsoleOptions) -> int:
        """Return how much too wide a table with whole names is whose sentences are folded to so many characters."""
        whole = build(self._longest).__rich_measure__(console, options.update(max_width=_ENDLESS)).maximum
        return max(0, whole - max(0, self._sentence - sentence) - options.max_width)


def _one_below_the_other(table: Table, width: int) -> Iterator[Text]:
    """Yield each row of a table as lines of its headers and cells, without empty cells."""
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        named = zip((str(column.header) for column in table.columns), cells, strict=True)
        shown_cells = [_named(header, cell) for header, cell in named if str(cell) not in _EMPTY]
        yield from _packed(shown_cells, width)


def _named(header: str, cell: RenderableType) -> Text:
    from rich.text import Text

    return Text.assemble((f"{header} ", "bold"), cell if isinstance(cell, Text) else str(cell))


def _packed(cells: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield lines with as many parts as fit on each. A part that is too long for a line is folded."""
    from rich.text import Text

    line = Text()
    for part in cells:
        if line and line.cell_len + len(_GAP) + part.cell_len > width:
            yield line
            line = Text(_GAP)
        elif line:
            line.append(_GAP)
        line.append_text(part)
    yield line
