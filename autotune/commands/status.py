"""Show the queue: what runs, how far it is, and why each waiting job waits."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from autotune.commands import job_status, references, render, wall_time
from autotune.commands.job_status import JobStatus, to_json
from autotune.commands.jobs import no_jobs, select
from autotune.commands.references import KernelLimit
from autotune.commands.report import history
from autotune.commands.report.history import History, LatencyPoint, outlook
from autotune.commands.terminal import AnyJobs, Json, say, show, tell, workspace_of
from autotune.errors import AutotuneError
from autotune.storage.daemon_info import running_daemon
from autotune.storage.job_files import read_spec, read_state
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export import ready_library

_LEVELS = "▁▂▃▄▅▆▇█"


class Screen:
    """Looks at a workspace again and again. The tuning logs are read on from where the last look ended."""

    def __init__(
        self, workspace: Workspace, chosen: Callable[[], list[JobPaths] | None], verbose: bool, watch: bool
    ) -> None:
        """Take what to look at.

        Args:
            chosen: Says which jobs the user named; None if none were named.
            verbose: Whether names are shown whole.
            watch: Whether it is looked at again and again, so that bars and lines are worth their room.
        """
        self._workspace = workspace
        self._chosen = chosen
        self._verbose = verbose
        self._watch = watch
        self._histories: dict[int, History] = {}
        self._ended: dict[int, str] = {}

    def snapshot(self) -> list[JobStatus]:
        """Return the status of the jobs."""
        return job_status.snapshot(self._workspace, self._chosen())

    def look(self) -> list[Any]:
        """Return what to show: renderables."""
        chosen = self._chosen()
        paths = self._workspace.job_list() if chosen is None else chosen
        statuses = job_status.snapshot(self._workspace, paths)
        sparks = (
            {job.id: self._spark(job_paths, job) for job_paths, job in zip(paths, statuses, strict=True)}
            if self._watch
            else None
        )
        shown: list[Any] = [render.queue(statuses, running_daemon(self._workspace), self._verbose, sparks)]
        if chosen is not None and len(statuses) == 1:
            shown += ["", render.tasks(statuses[0], self._verbose, _limits(paths[0]))]
            sentence = render.whole_model(statuses[0])
            shown += ["", sentence] if sentence else []
            shown += self._forecast(paths[0], statuses[0]) + self._ready(paths[0])
        return shown

    def _spark(self, paths: JobPaths, job: JobStatus) -> str:
        if job.id not in self._ended:
            line = sparkline(self._latency(paths))
            if not job.ended:
                return line
            self._ended[job.id] = line
        return self._ended[job.id]

    def _latency(self, paths: JobPaths) -> Sequence[LatencyPoint]:
        try:
            return self._history(paths).latency()
        except AutotuneError:  # the table says what is wrong with the job
            return ()

    def _history(self, paths: JobPaths) -> History:
        if paths.id not in self._histories:
            self._histories[paths.id] = history.of(self._workspace, paths)
        return self._histories[paths.id]

    def _forecast(self, paths: JobPaths, job: JobStatus) -> list[str]:
        """Return the forecast as lines to show; none if there is none."""
        try:
            history = self._history(paths)
            (times,) = wall_time.reports(self._workspace, [paths], time.time())
            state = read_state(paths)
            tasks = history.outline()  # not those of the status, which has none of a job that cannot be read
            aside = [index < len(state.tasks) and bool(state.tasks[index].set_aside) for index in range(len(tasks))]
            ahead = outlook(history.spec, tasks, aside, times, job.ended, job.outside_ms)
        except AutotuneError:
            return []
        return ["", ahead.says] if ahead is not None and ahead.says else []

    def _ready(self, paths: JobPaths) -> list[str]:
        """Return whether an export finds its library, as lines to show; none if it has to compile one."""
        with contextlib.suppress(AutotuneError, OSError):
            if ready_library.find(self._workspace, paths, read_spec(paths)) is not None:
                return ["", "ready to export: its library is compiled, and is verified and compared in seconds"]
        return []


def _limits(paths: JobPaths) -> dict[str, KernelLimit]:
    """Return what the machine allows each task, by its name, as the last export of a job measured."""
    try:
        exported = references.recall(paths)
    except AutotuneError:
        return {}
    return exported.limits_of_tasks() if exported is not None else {}


def sparkline(points: Sequence[LatencyPoint], width: int = 16) -> str:
    """Return how the latency fell over the trials, as a line of blocks; its height is the latency's logarithm."""
    if not points:
        return ""
    first = points[0].trials
    last = points[-1].trials
    low = math.log(points[-1].latency_ms)
    high = math.log(points[0].latency_ms)
    line = ""
    index = 0
    for column in range(width):
        trials = first + (last - first) * column / max(1, width - 1)
        while index + 1 < len(points) and points[index + 1].trials <= trials:
            index += 1
        level = (math.log(points[index].latency_ms) - low) / (high - low) if high > low else 0.0
        line += _LEVELS[round(level * (len(_LEVELS) - 1))]
    return line


def command(
    context: typer.Context,
    jobs: AnyJobs = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Do not shorten long names.")] = False,
    as_json: Json = False,
) -> None:
    """Show the queue: what runs, how far it is, and why each waiting job waits."""
    workspace = workspace_of(context)
    if not watch:
        gc.disable()  # what a look makes lives until the process ends, and looking through it takes a sixth of the time
    screen = Screen(workspace, lambda: select(workspace, jobs) if jobs else None, verbose, watch)

    def look() -> list[Any]:
        return [json.dumps(to_json(screen.snapshot()))] if as_json else screen.look()

    if watch and sys.stdout.isatty() and not as_json:
        from rich.console import Group
        from rich.live import Live

        with Live(Group(*look()), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(1)
                live.update(Group(*look()), refresh=True)
    while True:
        tell(look()[0]) if as_json else show(*look(), fitted=True)
        if not watch:
            break
        time.sleep(1)
    if not as_json and not workspace.job_list():
        say(no_jobs(workspace))
