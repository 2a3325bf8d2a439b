"""The level of a job, `submit --stop-at`: whether what is known of its tasks promises it."""

from __future__ import annotations

import time

from autotune.planning.level import estimate_ms, promises
from autotune.storage.confirmation import Confirmation
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import read_confirmation
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

# A confirmation is old after this time, and after so many times what it took: confirming takes a ninth of the time.
_OLD_S, _OLD_TIMES = 30.0, 8


def known_ms(workspace: Workspace, spec: JobSpec) -> float | None:
    """Return the sum of the best times of a job's tasks, from the logs; None while a task has none.

    Of several sets of shapes it is that of the slowest.

    Raises:
        StorageError: A log cannot be read.
    """
    best_us = {index: _best_us(workspace, spec, spec.tasks[index].hash) for index in spec.tunable}
    sums = [estimate_ms((entry.weights[index], us) for index, us in best_us.items()) for entry in spec.all_entries]
    return max((each for each in sums if each is not None), default=None)


def _best_us(workspace: Workspace, spec: JobSpec, hash: str) -> float | None:
    trials = TuningLog(workspace.tuning_log(spec.target_key, hash).records).trials()
    return min((trial.median_us for trial in trials if trial.median_us is not None), default=None)


def is_promised(workspace: Workspace, paths: JobPaths, spec: JobSpec) -> bool:
    """Return whether the job has a level and is expected to meet it now, and that is worth a measurement.

    It is not if the level was found to be met, or the whole model could not be timed. What the last confirmation found
    is doubted after a while: the machine may have been slow then.

    Raises:
        StorageError: A log or the last confirmation cannot be read.
    """
    if spec.stop_at_ms is None:
        return False
    last = read_confirmation(paths)
    if last is not None and (last.failed or last.meets(spec.stop_at_ms)):
        return False
    ratio = last.ratio if last is not None and not _is_old(last) else 1.0
    return promises(known_ms(workspace, spec), ratio, spec.stop_at_ms)


def _is_old(last: Confirmation) -> bool:
    return time.time() - last.at > max(_OLD_S, _OLD_TIMES * last.took_s)
