"""Check that nothing in a workspace is lost, duplicated or stuck, or that exported libraries are what was written.

These invariants hold at every moment, even right after a process was killed:

Jobs
  - A folder with the name of a job is a complete job. It has a readable spec with the same id and name, and a control
    file. Unless its device is simulated, it has the model and a program for every task.
  - No two jobs have the same id or the same name. No id is above the last one that was given.
  - The counts and best times in the state of a job that has ended follow from the tuning logs.
Stages
  - A stage file has the task and the round that its name says, and the task can be tuned.
  - If a job has not ended, each of its tasks has a stage file. The rounds of a task have no gap.
  - A search has no candidates. A build or a measurement has some. No candidate is in two rounds of its task, or in the
    log with another round of the same job.
  - Every folder of libraries belongs to a stage file.
Logs
  - Every line of a tuning log is complete and a valid trial. Only the last line may be torn: the next writer cuts it
    off.
  - No candidate is in a log twice. No lines were moved to a `.damaged` file.
  - An index that fits its log has the trials of the log, in order.
Leftovers
  - There is no temporary file, folder or half-written job of a process that ended more than an hour ago. The next
    daemon deletes younger ones.
  - Every worker descends from the daemon of the workspace.

Other processes may change files while they are checked. So the check is made twice, and a problem is reported only if
both checks find it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import psutil
import typer

from autotune.commands.terminal import say, tell, workspace_of
from autotune.devices import kind_of
from autotune.errors import AutotuneError, DamagedFile, DiskProblem
from autotune.storage import atomic, formats
from autotune.storage.daemon_info import running_daemon
from autotune.storage.formats import ENDED, Control, JobSpec, JobState, LastId, StageFile, Trial, from_json
from autotune.storage.identity import runs
from autotune.storage.job_files import orphaned_artifacts, read_state
from autotune.storage.leftovers import temporaries
from autotune.storage.paths import JobPaths, TaskLogPaths, Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT, TuningLog
from autotune.tvm_backend.export.folder import check_folder

_SETTLE_S = 1.0
_WRITER = re.compile(r"^\.(?:tmp|incoming)-(\d+)-")
_WORKER = "autotune.workers.worker"


def check(workspace: Workspace) -> list[str]:
    """Find what is wrong in a workspace. Changes nothing and takes no lock.

    Returns:
        A line for each problem; none if every invariant holds.
    """
    findings = _look(workspace)
    if findings:
        time.sleep(_SETTLE_S)
        again = set(_look(workspace))
        findings = [line for line in findings if line in again]
    return findings


def _look(workspace: Workspace) -> list[str]:
    logs = {path: _LogCheck(path) for path in sorted(workspace.logs.glob("tuning/*/*.jsonl"))}
    lines = [line for log in logs.values() for line in log.problems()]
    jobs = workspace.job_list()
    lines += _identities(workspace, jobs)
    for paths in jobs:
        lines += _JobCheck(workspace, paths, logs).problems()
    lines += _leftovers(workspace)
    return [*lines, *(f"process {pid} is a worker without a daemon" for pid in strays(workspace))]


def _identities(workspace: Workspace, jobs: list[JobPaths]) -> Iterator[str]:
    ids = Counter(job.id for job in jobs)
    names = Counter(job.name for job in jobs)
    for what, counts in (("id", ids), ("name", names)):
        for value, count in counts.items():
            if count > 1:
                yield f"{workspace.jobs}: {count} jobs have the {what} {value}"
    if jobs:
        try:
            last = formats.read(LastId, workspace.last_id).id
        except (FileNotFoundError, AutotuneError) as error:
            yield f"{workspace.last_id}: {error}"
        else:
            if last < max(ids):
                yield f"{workspace.last_id} says {last}, but there is a job {max(ids)}"


class _LogCheck:
    """The check of a tuning log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def records(self) -> list[dict[str, object]]:
        return RecordLog(self.path, *FORMAT).read()

    @cached_property
    def trials(self) -> dict[str, Trial]:
        by_hash: dict[str, Trial] = {}
        for record in self.records:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                trial = from_json(Trial, record)
                by_hash.setdefault(trial.hash, trial)
        return by_hash

    def problems(self) -> Iterator[str]:
        try:
            lines = self.path.read_bytes().count(b"\n")
            self.records  # noqa: B018  whether they can be read
        except (OSError, AutotuneError) as error:
            yield f"{self.path}: {error}"
            return
        if lines - 1 != len(self.records):
            yield f"{self.path}: {abs(lines - 1 - len(self.records))} of {lines} lines are damaged"
        for hash, count in Counter(record.get("hash") for record in self.records).items():
            if count > 1:
                yield f"{self.path}: candidate {hash} is there {count} times"
            if hash not in self.trials:
                yield f"{self.path}: a record ({hash}) is not a trial"
        if [entry.hash for entry in TuningLog(self.path).entries()] != list(self.trials):
            yield f"{TaskLogPaths(self.path).index} does not have the trials of the log; delete it"
        if (damaged := self.path.with_name(self.path.name + ".damaged")).exists():
            yield f"{damaged}: lines of {self.path.name} were set aside; delete it once you have looked"


@dataclass(frozen=True)
class _JobCheck:
    """The check of a published job."""

    workspace: Workspace
    paths: JobPaths
    logs: dict[Path, _LogCheck]

    def problems(self) -> Iterator[str]:
        try:
            spec = formats.read(JobSpec, self.paths.spec)
            state = read_state(self.paths)
            formats.read(Control, self.paths.control)
        except (FileNotFoundError, AutotuneError) as error:
            yield f"{self.paths.folder}: {error}"
            return
        yield from self._whole(spec)
        for aside in sorted([*self.paths.folder.glob("*.damaged*"), *self.paths.stages.glob("*.damaged*")]):
            yield f"{aside} is damaged and was set aside; delete it once you have looked"
        yield from self._stages(spec, state)
        if state.state in ENDED:
            yield from self._counts(spec, state)

    def _whole(self, spec: JobSpec) -> Iterator[str]:
        folder = self.paths.folder
        if folder != self.workspace.job(spec.id, spec.name).folder:
            yield f"{folder}: its spec is that of job {spec.id} ({spec.name})"
        if len(spec.known_at_submit) != len(spec.tasks):
            yield f"{self.paths.spec}: {len(spec.tasks)} tasks, but known trials of {len(spec.known_at_submit)}"
        wanted = [self.paths.stages]
        if kind_of(spec).exists:
            wanted.append(self.paths.snapshot)
        if kind_of(spec).has_model:
            wanted += [self.paths.task(task) for task in range(len(spec.tasks))]
        for path in wanted:
            if not path.exists():
                yield f"{path} is missing"

    def _stages(self, spec: JobSpec, state: JobState) -> Iterator[str]:
        files: dict[int, list[StageFile]] = {task: [] for task in spec.tunable}
        for path in self.paths.stage_files():
            try:
                file = formats.read(StageFile, path)
            except FileNotFoundError:
                continue
            except AutotuneError as error:
                yield f"{path}: {error}"
                continue
            if path != self.paths.stage(file.task, file.round) or file.task not in files:
                yield f"{path}: says task {file.task}, round {file.round}"
            else:
                files[file.task].append(file)
        for task, rounds in files.items():
            yield from self._rounds(spec, task, rounds)
            if not rounds and state.state not in ENDED:
                yield f"{self.paths.stages}: task {task} has no stage"
        yield from (f"{folder} belongs to no stage" for folder in orphaned_artifacts(self.paths))

    def _rounds(self, spec: JobSpec, task: int, files: list[StageFile]) -> Iterator[str]:
        # What is done for the whole model may wait for its device while later rounds of the task end.
        numbers = [file.round for file in files if file.kind not in ("compile", "confirm")]
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            yield f"{self.paths.stages}: rounds {numbers} of task {task} do not follow each other"
        for file in files:
            if (file.kind in ("build", "measure")) != bool(file.candidates):
                yield f"{self.paths.stage(task, file.round)}: a {file.kind} of {len(file.candidates)} candidates"
        waiting = [(item.hash, file.round) for file in files for item in file.candidates]
        for hash, count in Counter(hash for hash, _ in waiting).items():
            if count > 1:
                yield f"{self.paths.stages}: candidate {hash} of task {task} waits {count} times"
        log = self.logs.get(self.workspace.tuning_log(spec.target_key, spec.tasks[task].hash).records)
        for hash, round in waiting:
            trial = log.trials.get(hash) if log else None
            if trial and trial.job == self.paths.folder.name and trial.round != round:
                yield f"{self.paths.stage(task, round)}: candidate {hash} is in the log from round {trial.round}"

    def _counts(self, spec: JobSpec, state: JobState) -> Iterator[str]:
        if state.trials_done != sum(task.trials for task in state.tasks):
            yield f"{self.paths.state}: {state.trials_done} trials are not the sum of its tasks'"
        for index, task in enumerate(state.tasks[: len(spec.tasks)]):
            log = self.logs.get(self.workspace.tuning_log(spec.target_key, spec.tasks[index].hash).records)
            trials = list(log.trials.values()) if log else []
            if task.trials > len(trials) - (spec.known_at_submit[index] if spec.fresh else 0):
                yield f"{self.paths.state}: {task.trials} trials of task {index}, but {len(trials)} are in its log"
            times = {round(trial.median_us, 4) for trial in trials if trial.median_us is not None}
            if task.best_us is not None and task.best_us not in times:
                yield f"{self.paths.state}: the best of task {index}, {task.best_us:g} us, is not in its log"


def _leftovers(workspace: Workspace) -> Iterator[str]:
    for path in _old(temporaries(workspace)):
        match = _WRITER.match(path.name)
        if match is None or not runs(int(match[1])):
            yield f"{path} was left by a process that ended"


def _old(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > atomic.LEFTOVER_AGE_S:
                yield path


def command(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...", help="Folders that `export` wrote: check their libraries, and no workspace."
        ),
    ] = None,
) -> None:
    """Check that nothing in the workspace is lost, duplicated or stuck. Exit code 1 if something is.

    With folders that `export` wrote, check that each of their libraries is what was written, with all of its weights.
    To load a library checks all but its large weights.
    """
    problems = list(_damaged(folders)) if folders else check(workspace_of(context))
    for line in problems:
        tell(line)
    if problems:
        raise typer.Exit(1)
    say("nothing is wrong")


def _damaged(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        try:
            check_folder(folder)
        except (DamagedFile, DiskProblem) as error:
            yield str(error)


def workers(workspace: Workspace) -> set[int]:
    """Return the process ids of the workers of this workspace and of what they have forked, zombies excepted."""
    return {process.pid for process in psutil.process_iter() if _serves(process, workspace)}


def strays(workspace: Workspace) -> list[int]:
    """Return the workers, and their children, that do not descend from the daemon that serves the workspace now."""
    daemon = running_daemon(workspace)
    above = -1 if daemon is None else int(daemon.identity["pid"])
    return sorted(pid for pid in workers(workspace) if above not in _ancestors(pid))


def parent(pid: int) -> int:
    """Return the process that forked this one; 0 for one that is gone."""
    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return 0


def _serves(process: psutil.Process, workspace: Workspace) -> bool:
    """Whether it is a worker of this workspace. What `--workspace` names may be relative to where the process runs."""
    try:
        words = process.cmdline()
        if _WORKER not in words or process.status() == psutil.STATUS_ZOMBIE:
            return False
        named = words[words.index("--workspace") + 1]
        return Path(process.cwd(), named).resolve() == workspace.root.resolve()
    except (psutil.Error, OSError, ValueError, IndexError):  # it is gone, hidden from us, or no worker
        return False


def _ancestors(pid: int) -> set[int]:
    try:
        return {process.pid for process in psutil.Process(pid).parents()}
    except psutil.Error:
        return set()
