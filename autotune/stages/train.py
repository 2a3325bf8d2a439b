"""Train: fit the cost model to every trial of the job's tasks, then end the round."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import StorageError
from autotune.stages import simulated
from autotune.stages.stage import Stage
from autotune.storage.atomic import publish_bytes, publish_json, read_json
from autotune.storage.formats import Trial

_META = ("autotune-cost-model", 1)
_GROWTH = 1.15


def run(stage: Stage) -> dict[str, Any]:
    """Retrain when the trials have grown by 15% since the model was trained; end the round either way.

    Returns:
        `trained_on`, the number of trials behind the model.
    """
    trained_on = simulated.learn(stage) if stage.simulated else update_model(stage)
    stage.end_round()
    return {"trained_on": trained_on}


def update_model(stage: Stage) -> int:
    """Train on the trials of all tasks of the job, unless the model knows nearly all of them."""
    from autotune.tvm_backend.cost_model import CostModel

    logs = {task: stage.log(task).trials() for task in stage.spec.tunable}
    total = sum(map(len, logs.values()))
    before = _trained_on(stage)
    if total < before * _GROWTH and stage.paths.cost_model.exists():
        return before
    features: list[Any] = []
    throughput: list[float] = []
    for task, trials in logs.items():
        if trials:
            features += _features(stage, task, trials)
            throughput += _relative(trials)
    if any(throughput):
        publish_bytes(stage.paths.cost_model, CostModel.train(features, throughput).serialise())
        publish_json(stage.paths.cost_model_meta, *_META, {"trials": total})
    return total


def _trained_on(stage: Stage) -> int:
    try:
        return int(read_json(stage.paths.cost_model_meta, *_META)["trials"])
    except (OSError, StorageError, KeyError, ValueError):
        return 0


def _relative(trials: Sequence[Trial]) -> list[float]:
    """Best time over time: 1 for the best trial, 0 for a failed one."""
    times = [trial.best_us for trial in trials]
    best = min((time for time in times if time is not None), default=0.0)
    return [best / time if time else 0.0 for time in times]


def _features(stage: Stage, task: int, trials: Sequence[Trial]) -> list[Any]:
    """Features of trials, from the cache beside the log where it has them."""
    from autotune.tvm_backend.cost_model import extract_features
    from autotune.tvm_backend.space import replay, tune_context

    path = stage.workspace.tuning_log(stage.spec.target_key, stage.spec.tasks[task].hash).features
    cached = _read_cache(path)
    missing = [trial for trial in trials if trial.hash not in cached]
    if missing:
        program = stage.program_of(task)
        context = tune_context(program, stage.target)
        rows = extract_features(context, replay(missing, program, stage.target))
        cached.update({trial.hash: row for trial, row in zip(missing, rows, strict=True)})
        _write_cache(path, cached)
    return [cached[trial.hash] for trial in trials]


def _read_cache(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as stored:
            hashes = json.loads(bytes(stored["hashes"]).decode())
            return dict(zip(hashes, np.split(stored["rows"], stored["ends"][:-1]), strict=True))
    except Exception:  # derived data: whatever is wrong with it, it is computed again
        return {}


def _write_cache(path: Path, cached: dict[str, Any]) -> None:
    import numpy as np

    buffer = io.BytesIO()
    hashes = np.frombuffer(json.dumps(list(cached)).encode(), dtype=np.uint8)
    ends = np.cumsum([len(rows) for rows in cached.values()])
    np.savez(buffer, hashes=hashes, rows=np.concatenate(list(cached.values())), ends=ends)
    publish_bytes(path, buffer.getvalue())
