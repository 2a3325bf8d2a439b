"""What is known of a job's tasks from other kinds of device and from other versions of TVM.

Their times say nothing about this device, so they count for no budget. But what was fast there is likely to be fast
here: a task's first candidates are the best schedules known elsewhere, and the cost model learns from their ranking.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autotune.errors import StorageError
from autotune.stages import features
from autotune.stages.stage import Stage
from autotune.storage import device_kind
from autotune.storage.device_kind import DeviceKind, is_private, target_keys
from autotune.storage.formats import Candidate, Trial
from autotune.storage.paths import TaskLogPaths
from autotune.storage.trial_index import Entry, by_time
from autotune.storage.tuning_log import TuningLog

# A task's first trials are known schedules, up to this number.
_TRIED_FIRST = 16
# The best trials of one log from elsewhere that the cost model learns from.
_LEARNT_FROM = 256


@dataclass(frozen=True)
class _Log:
    """A tuning log of another kind of device.

    Attributes:
        paths: Its files.
        near: Whether only the version of TVM differs.
        log: The log.
        timed: Its trials that have a time, fastest first.
    """

    paths: TaskLogPaths
    near: bool
    log: TuningLog
    timed: tuple[Entry, ...]


def first_candidates(
    stage: Stage, trials: Sequence[Trial], pending: Sequence[Candidate], excluded: Collection[str]
) -> list[Candidate]:
    """Return the best schedules known elsewhere that were not tried here, up to a batch.

    Args:
        stage: A search.
        trials: Of its task, on this kind of device.
        pending: Candidates of other rounds.
        excluded: Hashes of programs that must not be proposed.
    """
    wanted = min(stage.count, _TRIED_FIRST - len(trials) - len(pending))
    if wanted <= 0 or stage.attempt:  # rebuilding a schedule may have ended the last attempt
        return []
    logs = _logs(stage, stage.task.hash)
    best = [trial for log in logs for trial in log.log.trials_of(log.timed[:_TRIED_FIRST])][:_TRIED_FIRST]
    if not best:
        return []
    from autotune.tvm_backend.search.propose import rebuild

    seen = {trial.hash for trial in trials} | {item.hash for item in pending} | set(excluded)
    return list(islice(rebuild(stage.program, stage.target, best, seen), wanted))


def has_trials(stage: Stage) -> bool:
    """Return whether trials of the job's tasks are known from elsewhere."""
    return any(_logs(stage, stage.spec.tasks[task].hash) for task in stage.spec.tunable)


def trial_features(stage: Stage, most: int) -> list[Any]:
    """Return features of the job's tasks with times that were measured elsewhere, up to about `most` trials.

    Times of one log are compared with each other only, so it does not matter that another device took them.

    Raises:
        DiskProblem: A file of features could not be written.
    """
    learnable: list[Any] = []
    for task in stage.spec.tunable:
        for log in _logs(stage, stage.spec.tasks[task].hash):
            if most <= 0:
                return learnable
            learnt = log.log.trials_of(log.timed[: min(most, _LEARNT_FROM)])
            learnable.append(features.of_task(stage, task, learnt, log.paths.features))
            most -= len(learnt)
    return learnable


def _logs(stage: Stage, task: str) -> list[_Log]:
    """Return what other folders know of a task, those of this processor first; of each its timed trials, best first."""
    own = stage.spec.target_key
    if is_private(own) or not stage.bench.device.exists:
        return []
    logs = []
    for key in target_keys(stage.workspace):
        kind = device_kind.read(stage.workspace, key)
        if key != own and not is_private(key) and _kind_of(key, kind) == stage.spec.target_kind:
            paths = stage.workspace.tuning_log(key, task)
            log = TuningLog(paths.records)
            if timed := _timed(log):
                logs.append(_Log(paths, _is_near(stage, kind), log, timed))
    return sorted(logs, key=lambda log: (not log.near, -len(log.timed)))


def _timed(log: TuningLog) -> tuple[Entry, ...]:
    """Return the trials of a log that have a time, fastest first; none where it cannot be read."""
    with suppress(StorageError):
        return tuple(by_time(log.entries()))
    return ()


def _kind_of(key: str, kind: DeviceKind | None) -> str:
    return str(kind.target["kind"]) if kind is not None else key.partition("-")[0]


def _is_near(stage: Stage, kind: DeviceKind | None) -> bool:
    own = device_kind.read(stage.workspace, stage.spec.target_key)
    return None not in (own, kind) and (own.target, own.device) == (kind.target, kind.device)  # type: ignore[union-attr]
