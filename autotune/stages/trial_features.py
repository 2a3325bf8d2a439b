"""Features of trials, which the cost model learns from, kept in a file beside each tuning log.

They are derived data. A file that is damaged in any way counts as empty, and the next job that has the task extracts
the features again.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.stages.context import StageContext
from autotune.stages.doubtful import Doubtful
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import Trial

_LOG = logging.getLogger("autotune.stages")


@dataclass(frozen=True)
class TrialFeatures:
    """Features and times of the trials of one task.

    Attributes:
        rows: Of each trial, [rows, features]. A trial whose schedule cannot be rebuilt has no rows.
        times_us: Of each trial; 0 for a failed one.
    """

    hashes: Sequence[str] = ()
    rows: Sequence[Any] = ()
    times_us: Sequence[float] = ()

    def by_hash(self) -> dict[str, Any]:
        """Return the rows of each trial by its hash."""
        return dict(zip(self.hashes, self.rows, strict=True))

    def labelled(self) -> tuple[list[Any], list[float]]:
        """Return the rows of the trials that have some, and the relative throughput of each."""
        from autotune.tvm_backend.search.cost_model import relative_throughput

        pairs = zip(self.rows, relative_throughput(self.times_us), strict=True)
        usable = [(rows, value) for rows, value in pairs if len(rows)]
        return [rows for rows, _ in usable], [value for _, value in usable]


def of_task(stage: StageContext, task: int, trials: Sequence[Trial], elsewhere: Path | None = None) -> TrialFeatures:
    """Return the features of a task's trials. Those that are missing in the file are extracted and added to it.

    Args:
        task: Index of a task of this job.
        elsewhere: The file of trials that were measured elsewhere. Those that do not fit here have no features.

    Raises:
        DiskProblem: The file could not be written.
    """
    import numpy as np

    from autotune.tvm_backend.search.features import WIDTH

    path = elsewhere or stage.workspace.tuning_log(stage.spec.target_key, stage.spec.tasks[task].hash).features
    rows = read(path).by_hash()
    missing = [trial for trial in trials if trial.hash not in rows]
    new = _extracted(stage, task, missing, doubtful=elsewhere is not None) if missing else {}
    rows.update(new)
    described = [trial for trial in trials if trial.hash in rows]
    if new:
        write(path, _features(described, rows))
    nothing = np.zeros((0, WIDTH), np.float32)
    return _features(trials, {**{trial.hash: nothing for trial in missing}, **rows})


def _features(trials: Sequence[Trial], rows: Mapping[str, Any]) -> TrialFeatures:
    hashes = [trial.hash for trial in trials]
    return TrialFeatures(hashes, [rows[hash] for hash in hashes], [trial.median_us or 0.0 for trial in trials])


def _extracted(stage: StageContext, task: int, trials: Sequence[Trial], doubtful: bool) -> dict[str, Any]:
    """Return the rows of trials by hash. Those whose schedules fail, or have to wait for the next stage, have none.

    Args:
        trials: Of this task.
        doubtful: Whether the schedules may be anything.
    """
    from autotune.tvm_backend.search.features import FeatureExtractor

    extractor = FeatureExtractor(stage.program_of(task), stage.target)
    trusted = [trial for trial in trials if not (doubtful or _ended_its_build(trial))]
    try:
        rows = dict(zip((trial.hash for trial in trusted), extractor.of_trials(trusted), strict=True))
    except Exception as error:  # TVM raises many kinds; one schedule is at fault, and must not cost the others
        _LOG.warning("%s: a schedule has no features: %s", stage.spec.tasks[task].name, error)
        rows = {}
    apart = [trial for trial in trials if trial.hash not in rows]
    return {**rows, **(_isolated_rows(stage, task, extractor, apart) if apart else {})}


def _ended_its_build(trial: Trial) -> bool:
    """Return whether a trial crashed or hung its build. It may have done so as the schedule was rebuilt."""
    return trial.failure is not None and trial.failure.stage == "build" and trial.failure.kind != "error"


def _isolated_rows(stage: StageContext, task: int, extractor: Any, trials: Sequence[Trial]) -> dict[str, Any]:
    """Extract features in another process, since a schedule may crash or hang it. Such a trial has no rows."""
    import numpy as np

    from autotune.tvm_backend.search.features import WIDTH

    def rows(trial: Trial) -> list[Any]:
        return [trial.hash, [[float(value) for value in row] for row in extractor.of_trials([trial])[0]]]

    runs = Doubtful(stage, task, "features").each(trials, rows, lambda value: str(value[0]))
    return {hash: np.array(value, np.float32).reshape(len(value), WIDTH) for _, (hash, value) in runs}


def of_other_jobs(stage: StageContext, most: int) -> list[TrialFeatures]:
    """Return features of tasks that this job does not have, on the same kind of device, the newest first.

    Args:
        most: Number of trials from which on no further task is read.
    """
    own = {stage.workspace.tuning_log(stage.spec.target_key, task.hash).records for task in stage.spec.tasks}
    others = [log for log in stage.workspace.tuning_logs(stage.spec.target_key) if log.records not in own]
    others_features: list[TrialFeatures] = []
    for log in sorted(others, key=lambda log: -_changed(log.features)):
        if most <= 0:
            break
        features = read(log.features)
        others_features.append(features)
        most -= len(features.hashes)
    return others_features


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read(path: Path) -> TrialFeatures:
    """Read a file of features. It counts as empty where it is missing or damaged, or has other columns."""
    import numpy as np

    from autotune.tvm_backend.search.features import WIDTH

    try:
        with np.load(path, allow_pickle=False) as stored:
            hashes = json.loads(bytes(stored["hashes"]).decode())
            rows = stored["rows"]
            times = stored["times_us"]
            if rows.ndim != 2 or rows.shape[1] != WIDTH or rows.dtype != np.float32 or times.dtype != np.float64:
                return TrialFeatures()
            rows = np.split(rows, stored["ends"][:-1])
            times = times.tolist()
    except Exception:  # derived data, which may be damaged in any way
        return TrialFeatures()
    return TrialFeatures(hashes, rows, times) if len(hashes) == len(rows) == len(times) else TrialFeatures()


def write(path: Path, features: TrialFeatures) -> None:
    """Replace the file by features of at least one trial.

    Raises:
        DiskProblem: It could not be written.
    """
    import numpy as np

    buffer = io.BytesIO()
    hashes = np.frombuffer(json.dumps(list(features.hashes)).encode(), dtype=np.uint8)
    ends = np.cumsum([len(rows) for rows in features.rows])
    rows = np.concatenate(list(features.rows))
    np.savez(buffer, hashes=hashes, rows=rows, ends=ends, times_us=features.times_us)
    publish_bytes(path, buffer.getvalue())
