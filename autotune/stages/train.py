"""Train: fit the cost model to every trial of the job's tasks, then end the round."""

from __future__ import annotations

import contextlib
import time
import zlib
from typing import Any

from autotune.errors import StorageError
from autotune.stages import features, simulated
from autotune.stages.stage import Stage
from autotune.storage.atomic import publish_bytes, publish_json, read_json, remove
from autotune.storage.job_files import checksum
from autotune.storage.paths import JobPaths

_META = ("autotune-cost-model", 1)
_GROWTH = 1.15
# A job's own trials tell most; up to so many in all, those of other jobs are added.
_ENOUGH = 2000
_PUBLISHING_S = 0.2


def run(stage: Stage) -> dict[str, Any]:
    """Retrain when the trials have grown by 15% since the model was trained; end the round either way.

    Returns:
        `trained_on`, the number of trials behind the model.
    """
    trained_on = simulated.learn(stage) if stage.simulated else update_model(stage)
    stage.end_round()
    return {"trained_on": trained_on}


def update_model(stage: Stage) -> int:
    """Train on the trials of all tasks of the job, unless the model knows nearly all of them.

    Trials of other jobs for the same kind of device teach what loop nests it likes before this job has many of its own.
    """
    from autotune.tvm_backend.search.cost_model import CostModel
    from autotune.tvm_backend.search.prior import prior

    logs = {task: stage.log(task).trials() for task in stage.spec.tunable}
    total = sum(map(len, logs.values()))
    before = _trained_on(stage)
    if total < before * _GROWTH and is_intact(stage.paths):
        return before
    samples = [features.sample(stage, task, trials) for task, trials in logs.items() if trials]
    samples += features.borrowed(stage, max(0, _ENOUGH - total))
    rows: list[Any] = []
    throughput: list[float] = []
    for sample in samples:
        usable, labels = sample.labelled()
        rows += usable
        throughput += labels
    if any(throughput):
        start = prior(stage.spec.target_kind) if stage.config.search.prior else None
        model = CostModel.train(rows, throughput, start).serialise()
        publish_bytes(stage.paths.cost_model, model)
        publish_json(stage.paths.cost_model_meta, *_META, {"trials": total, "crc32": zlib.crc32(model)})
    return total


def is_intact(paths: JobPaths) -> bool:
    """Whether there is a cost model that is what was trained: a damaged one may crash its reader, or mislead it.

    It and its checksum are two files, so one that is trained at this moment may look damaged: look twice.
    """
    for last in (False, True):
        with contextlib.suppress(OSError):
            if _meta(paths).get("crc32") == checksum(paths.cost_model)[1]:
                return True
        if not (last or paths.cost_model.exists()):
            return False
        time.sleep(0 if last else _PUBLISHING_S)
    return False


def forget_model(paths: JobPaths) -> None:
    """Have the cost model trained anew before it is read again.

    Raises:
        DiskProblem: the disk did not take that.
    """
    remove(paths.cost_model_meta)


def _meta(paths: JobPaths) -> dict[str, Any]:
    try:
        return read_json(paths.cost_model_meta, *_META)
    except (OSError, StorageError):
        return {}


def _trained_on(stage: Stage) -> int:
    trials = _meta(stage.paths).get("trials")
    return trials if isinstance(trials, int) else 0
