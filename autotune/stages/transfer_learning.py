"""Transfer learning: what is known of a job's tasks from other workspaces, kinds of device and versions of TVM.

Times from elsewhere say nothing about this device, and those that another workspace claims for it may be wrong. So they
count for nothing. But what was fast there is likely to be fast here: a task's first candidates are the best schedules
known elsewhere, and the cost model learns from their ranking. A claim that no such device can meet is set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from autotune.errors import StorageError
from autotune.stages import trial_features
from autotune.stages.context import StageContext
from autotune.stages.doubtful import Doubtful
from autotune.storage import device_kind
from autotune.storage.device_kind import DeviceKind, is_private, measured_on, target_keys
from autotune.storage.formats import Candidate, TaskSpec, Trial, from_json, to_json
from autotune.storage.paths import TaskLogPaths
from autotune.storage.trial_index import IndexEntry, by_time
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.isa.instruction_sets import cpu_flags, max_operations

_LOG = logging.getLogger("autotune.stages")
# A task's first trials are known schedules, up to this number. Of claims for this kind of device so many are tried
# whenever they are imported.
_TRIED_FIRST = 16
# The best trials of one log from elsewhere that the cost model learns from.
_LEARNT_FROM = 256
# What no device does: a call that takes less time, and more operations a second.
_MIN_US = 0.01
_CLOCK_GHZ = 6.5
_GPU_GFLOPS = 2e7


@dataclass(frozen=True)
class _Log:
    """A tuning log of another kind of device."""

    paths: TaskLogPaths  # its files
    here: bool  # whether another workspace claims to have measured it on this kind of device
    near: bool  # whether only the version of TVM differs
    log: TuningLog
    timed: tuple[IndexEntry, ...]  # its trials that have a time, fastest first


def first_candidates(
    stage: StageContext, trials: Sequence[Trial], pending: Sequence[Candidate], excluded: Collection[str]
) -> list[Candidate]:
    """Return the best schedules known elsewhere that were not tried here, up to a batch.

    Claims for this kind of device come first, however many trials the task has.

    Args:
        stage: A search.
        trials: Of its task, on this kind of device.
        pending: Candidates of other rounds.
        excluded: Hashes of programs that must not be proposed.
    """
    if stage.attempt:  # rebuilding a schedule may have ended the last attempt
        return []
    logs = _logs(stage, stage.task)
    seen = {trial.hash for trial in trials} | {item.hash for item in pending} | set(excluded)
    claims = _rebuilt(stage, [log for log in logs if log.here], seen, stage.count)
    seen.update(item.hash for item in claims)
    wanted = min(stage.count, _TRIED_FIRST - len(trials) - len(pending)) - len(claims)
    return claims + _rebuilt(stage, [log for log in logs if not log.here], seen, wanted)


def _rebuilt(stage: StageContext, logs: Iterable[_Log], seen: Collection[str], wanted: int) -> list[Candidate]:
    """Return the best schedules of some logs that are not among those seen, up to a number."""
    if wanted <= 0:
        return []
    best = [trial for log in logs for trial in log.log.trials_of(log.timed[:_TRIED_FIRST])][:_TRIED_FIRST]
    if not best:
        return []
    candidates: dict[str, Candidate] = {}
    with closing(_rebuilt_apart(stage, best, seen)) as rebuilt:
        for candidate in rebuilt:
            if candidate.hash not in seen:
                candidates[candidate.hash] = candidate
            if len(candidates) == wanted:
                break
    return list(candidates.values())


def _rebuilt_apart(
    stage: StageContext, trials: Sequence[Trial], seen: Collection[str]
) -> Generator[Candidate, None, None]:
    """Yield the candidates of trials whose schedules fit, rebuilt in a process that they may end: TVM trusts them."""
    from autotune.tvm_backend.search.propose import rebuild

    program = stage.program
    target = stage.target

    def plain(trial: Trial) -> list[Any]:
        return [to_json(candidate) for candidate in rebuild(program, target, [trial], ())]

    def hash(rebuilt: list[Any]) -> str:
        return str(rebuilt[0]["hash"]) if rebuilt else ""

    with closing(Doubtful(stage, stage.file.task, "rebuild").each(trials, plain, hash, seen)) as runs:
        yield from (from_json(Candidate, item) for _, rebuilt in runs for item in rebuilt)


def has_trials(stage: StageContext) -> bool:
    """Return whether trials of the job's tasks are known from elsewhere."""
    return any(_logs(stage, stage.spec.tasks[task]) for task in stage.spec.tunable)


def features_of_trials(stage: StageContext, most: int) -> list[Any]:
    """Return features of the job's tasks with times that were measured elsewhere, up to about `most` trials.

    Times of one log are compared with each other only, so it does not matter that another device took them.

    Raises:
        DiskProblem: A file of features could not be written.
    """
    learnable: list[Any] = []
    for task in stage.spec.tunable:
        for log in _logs(stage, stage.spec.tasks[task]):
            if most <= 0:
                return learnable
            learnt = log.log.trials_of(log.timed[: min(most, _LEARNT_FROM)])
            learnable.append(trial_features.of_task(stage, task, learnt, log.paths.features))
            most -= len(learnt)
    return learnable


def _logs(stage: StageContext, task: TaskSpec) -> list[_Log]:
    """Return what other folders know of a task, of each its timed trials, best first.

    Claims for this kind of device come first, then what was measured with this processor.
    """
    own = stage.spec.target_key
    if is_private(own) or not stage.job_device.exists:
        return []
    logs = []
    for key in target_keys(stage.workspace):
        kind = device_kind.read(stage.workspace, key)
        if key != own and not is_private(key) and _kind_of(key, kind) == stage.spec.target_kind:
            paths = stage.workspace.tuning_log(key, task.hash)
            log = TuningLog(paths.records)
            here = measured_on(key) == own
            timed = _possible(stage, task, _timed(log)) if here else _timed(log)
            if timed:
                logs.append(_Log(paths, here, _is_near(stage, kind), log, timed))
    return sorted(logs, key=lambda log: (not log.here, not log.near, -len(log.timed)))


def _possible(stage: StageContext, task: TaskSpec, claims: tuple[IndexEntry, ...]) -> tuple[IndexEntry, ...]:
    """Return the claims that a device of this kind can meet, and say which ones it cannot."""
    least_us = _least_us(stage, task)
    possible = tuple(entry for entry in claims if (entry.median_us or 0.0) >= least_us)
    if len(possible) < len(claims) and stage.file.kind == "search":  # a training looks at them too
        _LOG.warning(
            "%s: %d imported times, down to %g us, are set aside: no such device takes less than %.3g us",
            *(task.name, len(claims) - len(possible), claims[0].median_us, least_us),
        )
    return possible


def _least_us(stage: StageContext, task: TaskSpec) -> float:
    """Return a time that no kernel of a task undercuts on a device of the job's kind."""
    cpu_gflops = max_operations(cpu_flags()) * _CLOCK_GHZ * int(stage.spec.target.get("num-cores", 1))
    gflops = cpu_gflops if stage.spec.target_kind == "llvm" else _GPU_GFLOPS
    return max(_MIN_US, task.gflop / gflops * 1e6)


def _timed(log: TuningLog) -> tuple[IndexEntry, ...]:
    """Return the trials of a log that have a time, fastest first; none where it cannot be read."""
    with suppress(StorageError):
        return tuple(by_time(log.entries()))
    return ()


def _kind_of(key: str, kind: DeviceKind | None) -> str:
    return str(kind.target["kind"]) if kind is not None else measured_on(key).partition("-")[0]


def _is_near(stage: StageContext, kind: DeviceKind | None) -> bool:
    own = device_kind.read(stage.workspace, stage.spec.target_key)
    return None not in (own, kind) and (own.target, own.device) == (kind.target, kind.device)  # type: ignore[union-attr]
