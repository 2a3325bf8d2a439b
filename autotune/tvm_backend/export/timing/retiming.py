"""Time the best candidates of each task again before one of them is exported.

The logged times of candidates were measured at different moments, in different states of the machine. The shortest of
many noisy times is also too short. So the few candidates that may be the fastest are built again and timed in turns:
what slows the machine down for a while slows them all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tvm.s_tir.meta_schedule.database import Workload

from autotune.errors import WorkerError, WrongResult, first_line
from autotune.processes.isolate import isolated_at_once
from autotune.storage.device_kind import claimed
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import MAX_SLOWDOWN, by_time, nearly_fastest
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.codegen.row_vectors import record_to_compile
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.build_kernel import build_candidate
from autotune.tvm_backend.kernels.cache_state import Context
from autotune.tvm_backend.kernels.time_kernel import Runner
from autotune.tvm_backend.search.tasks import read_program
from autotune.tvm_backend.target import tvm_target
from autotune.tvm_backend.types import Device, IRModule, Target

# For each such part of the model's time, one more candidate of a task is timed again beside its fastest.
_SHARE_OF_ONE = 0.01
TURNS = 7
_RUNS = 8  # in one turn
_BUILD_S = 600.0  # that a build may take


@dataclass
class RetimedCandidate:
    """A candidate that was built again.

    Attributes:
        trial: The trial of the candidate in the tuning log.
        library: The file of its kernel.
        times_us: Its time in each turn, in microseconds.
    """

    trial: Trial
    library: Path
    times_us: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        """The median over the turns, in microseconds."""
        return statistics.median(self.times_us)


@dataclass(frozen=True)
class SetAside:
    """A trial that an export does not use.

    Attributes:
        hash: Of its candidate.
        best_us: Its time, in microseconds.
        reason: One line.
    """

    hash: str
    best_us: float | None
    reason: str


class Replayer:
    """Says which trials of a job's tasks still make a schedule of them, and remembers those that do not.

    Where a library was made of the best trial of each task, these do, and are not tried again.

    Attributes:
        set_aside: The latter, by the hash of the task.
    """

    def __init__(self, paths: JobPaths, spec: JobSpec, *, trusted: bool = False) -> None:
        self._trusted = {task.hash for task in spec.tasks} if trusted else set[str]()
        self.set_aside: dict[str, list[SetAside]] = {}
        self._paths = paths
        self._target = tvm_target(spec.target)
        self._indices = {task.hash: index for index, task in enumerate(spec.tasks)}
        self._programs: dict[str, IRModule] = {}

    def __call__(self, task: str, trial: Trial) -> bool:
        """Return whether a trial of the task with this hash makes a schedule of it. The first asked for is the best."""
        if task in self._trusted:
            self._trusted.remove(task)
            return True
        if task not in self._programs:
            self._programs[task] = read_program(self._paths.task(self._indices[task]), task)
        try:
            record_to_compile(trial, Workload(self._programs[task]), self._target)
        except MemoryError:
            raise
        except Exception as error:  # TVM raises many kinds; each says that the schedule does not fit
            reason = f"its schedule does not apply: {first_line(error)}"
            self.set_aside.setdefault(task, []).append(SetAside(trial.hash, trial.median_us, reason))
            return False
        return True


def fastest_trials(
    workspace: Workspace,
    spec: JobSpec,
    most: int,
    applies: Callable[[str, Trial], bool],
    *,
    disturbed_only: bool = False,
) -> dict[str, list[Trial]]:
    """Find the trials of each task that may be its fastest.

    Args:
        workspace: Where the tuning logs are.
        most: How many trials to return of each task at most.
        applies: Whether a trial makes a schedule of the task with this hash. The next best takes the place of one that
            does not.
        disturbed_only: Whether a task has only its fastest trial where no measurement of those near it was disturbed.
            To see whether a trial applies takes some 50 ms.

    Returns:
        The trials by the hash of the task, the fastest logged one first. A task without a time is left out.
    """
    fastest = {}
    for task in spec.tasks:
        log = TuningLog(workspace.tuning_log(spec.target_key, task.hash).records)
        entries = log.entries()
        near = nearly_fastest(entries, most)
        needed = 1 if disturbed_only and not any(entry.disturbed for entry in near) else most
        chosen: list[Trial] = []
        for entry in by_time(entries):
            if len(chosen) == needed or (
                chosen and (entry.median_us or 0.0) > MAX_SLOWDOWN * (chosen[0].median_us or 0.0)
            ):
                break
            chosen += [trial for trial in log.trials_of([entry]) if applies(task.hash, trial)]
        if chosen:
            fastest[task.hash] = chosen
    return fastest


def claims(workspace: Workspace, spec: JobSpec) -> dict[str, int]:
    """Return how many times other workspaces claim of each task that has none of this workspace, by its hash."""
    counts = {}
    for task in spec.tasks:
        measured = TuningLog(workspace.tuning_log(spec.target_key, task.hash).records).entries()
        told = TuningLog(workspace.tuning_log(claimed(spec.target_key), task.hash).records).entries()
        if told and not by_time(measured):
            counts[task.hash] = len(by_time(told))
    return counts


def contenders(spec: JobSpec, fastest: Mapping[str, Sequence[Trial]]) -> dict[str, Sequence[Trial]]:
    """Return the trials that are worth timing again, by the hash of the task: two of each task or more.

    A task gets as many of its fastest as its part of the model's time is worth, at the set of shapes where that is
    largest: building one takes as long for a task that matters little.

    Args:
        fastest: What `fastest_trials` returned.
    """
    shares = dict.fromkeys(fastest, 0.0)
    for entry in spec.all_entries:
        weights = {task.hash: weight for task, weight in zip(spec.tasks, entry.weights, strict=True) if weight}
        times = {hash: weights[hash] * (fastest[hash][0].median_us or 0.0) for hash in weights if hash in fastest}
        total = sum(times.values())
        shares.update((hash, max(shares[hash], time / total)) for hash, time in times.items() if total)
    chosen = {hash: trials[: 1 + int(shares[hash] / _SHARE_OF_ONE)] for hash, trials in fastest.items()}
    return {hash: trials for hash, trials in chosen.items() if len(trials) > 1}


def disturbed(contenders: Mapping[str, Sequence[Trial]]) -> dict[str, Sequence[Trial]]:
    """Return those of what `contenders` returned whose measurement was disturbed, each task's behind its fastest.

    The time of such a one may be far too long, so that it may be the fastest. The others are slower than that.
    """
    chosen = {
        hash: [trials[0], *(trial for trial in trials[1:] if trial.disturbed)] for hash, trials in contenders.items()
    }
    return {hash: trials for hash, trials in chosen.items() if len(trials) > 1}


def build(
    items: Sequence[tuple[str, Trial]],
    program: Callable[[str], IRModule],
    target: Target,
    folder: Path,
    children: int,
) -> Iterator[None]:
    """Build candidates, and yield after each.

    Args:
        items: The candidates, each with the hash of its task.
        program: Returns the tensor program of a task.
        folder: Where the libraries go.
        children: How many processes build at the same time; 0 to build them in this one.

    Raises:
        WorkerError: A candidate cannot be built, though it could when it was measured.
        Exception: Without children, whatever `build_candidate` raises.
    """

    def one(item: tuple[str, Trial]) -> None:
        hash, trial = item
        build_candidate(trial, program(hash), target, _library(folder, hash, trial))

    if not children:
        yield from map(one, items)
        return
    for (_, trial), result in isolated_at_once(items, lambda: one, children, limit_s=_BUILD_S):
        if result.kind != "ok":
            raise WorkerError(f"candidate {trial.hash} cannot be built again: {result.reason}")
        yield


def candidates(items: Sequence[tuple[str, Trial]], folder: Path) -> dict[str, list[RetimedCandidate]]:
    """Return the candidates that `build` has built, by the hash of their task."""
    built: dict[str, list[RetimedCandidate]] = {}
    for hash, trial in items:
        built.setdefault(hash, []).append(RetimedCandidate(trial, _library(folder, hash, trial)))
    return built


def _library(folder: Path, hash: str, trial: Trial) -> Path:
    return folder / f"{hash}-{trial.hash}.so"


def time_in_turns(
    tasks: Mapping[str, Sequence[RetimedCandidate]], runner: Runner, contexts: Mapping[str, Context]
) -> None:
    """Time the candidates of all tasks in turns, and append to their `times_us`.

    The machine must be quiet. A first turn warms it up and does not count.

    Args:
        tasks: The candidates of each task, by its hash.
        runner: What times a library.
        contexts: On CPUs, where the model has the arguments of each task's kernel.
    """
    for turn in range(TURNS + 1):
        for hash, candidates in tasks.items():
            runner.context = contexts.get(hash)
            for candidate in candidates:
                times = _times(candidate, runner)
                candidate.times_us += [statistics.median(times)] if turn else []


def _times(candidate: RetimedCandidate, runner: Runner) -> list[float]:
    if runner.on_cpu:
        return runner.time_runs(candidate.library, candidate.trial.args, _RUNS)
    return runner.time(candidate.library, candidate.trial.args, None)


def fastest_correct(
    candidates: Sequence[RetimedCandidate], reference: verify.Reference | None, device: Device
) -> RetimedCandidate:
    """Return the fastest candidate of a task that computes the right result.

    Tuning checks a candidate only when it becomes the best so far. So the first of `candidates`, which has the best
    logged time, has been checked. The others are checked here.

    Args:
        candidates: The candidates of one task, the fastest logged one first.
        reference: The right result; None if this workspace checks no results.
        device: The TVM device to check on.
    """
    ranked = sorted(candidates, key=lambda candidate: candidate.median_us)
    return next(item for item in ranked if item is candidates[0] or _is_right(item, reference, device))


def _is_right(candidate: RetimedCandidate, reference: verify.Reference | None, device: Device) -> bool:
    if reference is None or reference.problem:
        return True  # there is nothing to compare with
    try:
        verify.Verifier(reference, device).check_library(candidate.library)
    except WrongResult:
        return False
    return True
