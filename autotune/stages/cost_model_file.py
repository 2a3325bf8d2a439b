"""The cost model of a job: fitted to every trial of the job's tasks, and kept in a file with its seal."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from autotune.errors import StorageError
from autotune.stages import transfer_learning, trial_features
from autotune.stages.context import StageContext
from autotune.storage.atomic import publish_bytes, publish_json, read_json, remove
from autotune.storage.paths import JobPaths
from autotune.storage.seals import COST_MODEL, digest, file_digest, is_sealed, seal
from autotune.storage.tuning_log import trials_to_learn_from

_META = ("autotune-cost-model", 1)
# The cost model is trained again when there are this many times as many trials.
_GROWTH = 1.15
# Trials of other jobs are added up to this number in all; with more of its own, a job needs none.
_ENOUGH = 2000
# Seconds in which another worker publishes a model and its seal.
_PUBLISHING_S = 0.2


def update_model(stage: StageContext) -> int:
    """Train the cost model on the trials of all tasks of the job, unless it knows nearly all of them.

    Of a task with very many trials, it learns from some; see `learnt.py`. While the job has few trials, those of other
    jobs for the same kind of device are added, since they tell which loop nests suit it.

    Returns:
        The number of the job's trials that the model was trained on.

    Raises:
        DiskProblem: The model or a file of features could not be written.
    """
    from autotune.tvm_backend.search.cost_model import CostModel, prior

    logs = {task: stage.log(task) for task in stage.spec.tunable}
    total = sum(len(log.entries()) for log in logs.values())
    before = _trained_on(stage)
    if total < before * _GROWTH and is_intact(stage.paths):
        return before
    learnt = {task: trials_to_learn_from(log) for task, log in logs.items()}
    extracted = [trial_features.of_task(stage, task, trials) for task, trials in learnt.items() if trials]
    extracted += transfer_learning.features_of_trials(stage, max(0, _ENOUGH - total))
    enough = _ENOUGH - sum(len(task_features.hashes) for task_features in extracted)
    extracted += trial_features.of_other_jobs(stage, max(0, enough))
    rows: list[Any] = []
    throughput: list[float] = []
    for task_features in extracted:
        usable, labels = task_features.labelled()
        rows += usable
        throughput += labels
    if any(throughput):
        start = prior(stage.spec.target_kind) if stage.config.search.prior else None
        model = CostModel.train(rows, throughput, start).serialise()
        publish_bytes(stage.paths.cost_model, model)
        mark = seal(COST_MODEL, digest(model))
        publish_json(stage.paths.cost_model_meta, *_META, {"trials": total, "seal": mark})
    return total


def is_intact(paths: JobPaths) -> bool:
    """Return whether there is a cost model with its seal. Another one may be anything, and its reader trusts it.

    The model and its seal are two files. While another worker replaces them they do not match, so a mismatch is
    checked a second time.
    """
    for last in (False, True):
        with contextlib.suppress(OSError):
            if is_sealed(COST_MODEL, file_digest(paths.cost_model), _meta(paths).get("seal")):
                return True
        if not (last or paths.cost_model.exists()):
            return False
        time.sleep(0 if last else _PUBLISHING_S)
    return False


def forget_model(paths: JobPaths) -> None:
    """Remove the seal of the cost model, so that the model is trained again before anyone reads it.

    Raises:
        DiskProblem: The file could not be removed.
    """
    remove(paths.cost_model_meta)


def _meta(paths: JobPaths) -> dict[str, Any]:
    try:
        return read_json(paths.cost_model_meta, *_META)
    except (OSError, StorageError):
        return {}


def _trained_on(stage: StageContext) -> int:
    trials = _meta(stage.paths).get("trials")
    return trials if isinstance(trials, int) else 0
