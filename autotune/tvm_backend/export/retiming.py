"""The best candidates of each task, timed again in turns, so that noise does not choose what is handed over.

A logged time was taken while the machine was as it was at that moment, and the least of many noisy times is too low. So
the few that may be the best are built again and timed in turns: what slows the machine for a while slows them all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import WrongResult
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.build import build_candidate
from autotune.tvm_backend.kernels.run import Runner

# Logged times so close to the best may be in the wrong order.
_CLOSE = 1.15
# A task with less of the model's time than this is not worth the builds.
_SHARE = 0.005
TURNS = 7
_RUNS = 8


@dataclass
class Entrant:
    """A candidate that was built again; `times_us` has its time in each turn."""

    trial: Trial
    library: Path
    times_us: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        return statistics.median(self.times_us)


def contenders(workspace: Workspace, spec: JobSpec, most: int) -> dict[str, list[Trial]]:
    """Of each task that has a time, by its hash, the trials that may be the best, at most `most`, best logged first."""
    found = {}
    for task in spec.tasks:
        trials = TuningLog(workspace.tuning_log(spec.target_key, task.hash).records).trials()
        timed = sorted((trial for trial in trials if trial.median_us), key=lambda trial: trial.median_us or 0.0)
        if timed:
            limit = (timed[0].median_us or 0.0) * _CLOSE
            found[task.hash] = [trial for trial in timed[:most] if (trial.median_us or 0.0) <= limit]
    return found


def open_races(spec: JobSpec, found: Mapping[str, Sequence[Trial]]) -> list[str]:
    """The tasks that have more than one contender and matter, by hash."""
    weights = {task.hash: task.weight for task in spec.tasks}
    shares = {hash: weights[hash] * (trials[0].median_us or 0.0) for hash, trials in found.items()}
    least = _SHARE * sum(shares.values())
    return [hash for hash, trials in found.items() if len(trials) > 1 and shares[hash] >= least]


def build(trials: Sequence[Trial], program: Any, target: Any, folder: Path) -> list[Entrant]:
    """Libraries of a task's contenders in `folder`."""
    entrants = []
    for trial in trials:
        library = folder / f"{trial.hash}.so"
        build_candidate(trial, program, target, library)
        entrants.append(Entrant(trial, library))
    return entrants


def play(races: Mapping[str, Sequence[Entrant]], runner: Runner) -> None:
    """Time all entrants of all races in turns, on a quiet machine. A first turn, which does not count, warms it up.

    On a CPU the caches are flushed: the sum of such times is nearer to what the whole model takes than that of logged
    ones (scripts/measure_cache.py, docs/performance.md).
    """
    for turn in range(TURNS + 1):
        for race in races.values():
            for entrant in race:
                times = _times(entrant, runner)
                entrant.times_us += [statistics.median(times)] if turn else []


def _times(entrant: Entrant, runner: Runner) -> list[float]:
    if runner.on_cpu:
        return runner.time_flushed(entrant.library, entrant.trial.args, _RUNS)
    return runner.time(entrant.library, entrant.trial.args, None)


def winner(race: Sequence[Entrant], reference: verify.Reference | None, device: Any) -> Entrant:
    """The fastest entrant that computes what its task says.

    Only a trial that was the best when it was logged has been checked before; the best logged one was.
    """
    ranked = sorted(race, key=lambda entrant: entrant.median_us)
    return next(entrant for entrant in ranked if entrant is race[0] or _is_right(entrant, reference, device))


def _is_right(entrant: Entrant, reference: verify.Reference | None, device: Any) -> bool:
    if reference is None or reference.problem:
        return True  # nothing is checked in this workspace, or this task cannot be
    try:
        verify.Verifier(reference, device).check_library(entrant.library)
    except WrongResult:
        return False
    return True
