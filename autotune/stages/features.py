"""Features of trials: what the cost model learns from, kept beside each tuning log.

Derived data: whatever is wrong with a file, its features are extracted again by the next job that has the task.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.processes.isolate import isolated
from autotune.stages.stage import Stage
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import Trial


@dataclass(frozen=True)
class Sample:
    """Trials of one task. `rows` has an array [stores, features] for each; a time of 0 is that of a failed trial.

    A trial of which no features can be had, as its schedule crashes the compiler, has an array of no stores.
    """

    hashes: Sequence[str] = ()
    rows: Sequence[Any] = ()
    times_us: Sequence[float] = ()

    def by_hash(self) -> dict[str, Any]:
        return dict(zip(self.hashes, self.rows, strict=True))

    def labelled(self) -> tuple[list[Any], list[float]]:
        """The rows of the trials that have some, and the relative throughput of each."""
        from autotune.tvm_backend.search.cost_model import relative_throughput

        pairs = zip(self.rows, relative_throughput(self.times_us), strict=True)
        usable = [(rows, value) for rows, value in pairs if len(rows)]
        return [rows for rows, _ in usable], [value for _, value in usable]


def sample(stage: Stage, task: int, trials: Sequence[Trial]) -> Sample:
    """The trials of a task of this job with their features, from the file beside the log where it has them."""
    from autotune.tvm_backend.search.features import Features

    path = stage.workspace.tuning_log(stage.spec.target_key, stage.spec.tasks[task].hash).features
    known = read(path).by_hash()
    missing = [trial for trial in trials if trial.hash not in known]
    if missing:
        features = Features(stage.program_of(task), stage.target)
        harmful = [trial for trial in missing if _harmed_the_compiler(trial) and features.needs_replay(trial)]
        spared = {trial.hash for trial in harmful}
        harmless = [trial for trial in missing if trial.hash not in spared]
        known.update(zip((trial.hash for trial in harmless), features.of_trials(harmless), strict=True))
        known.update(_carefully(stage, features, harmful))
    hashes = [trial.hash for trial in trials]
    found = Sample(hashes, [known[hash] for hash in hashes], [trial.median_us or 0.0 for trial in trials])
    if missing:
        write(path, found)
    return found


def _harmed_the_compiler(trial: Trial) -> bool:
    """Whether its build ended the process, perhaps while the schedule was rebuilt."""
    return trial.failure is not None and trial.failure.stage == "build" and trial.failure.kind != "error"


def _carefully(stage: Stage, features: Any, trials: Sequence[Trial]) -> dict[str, Any]:
    """Features of trials that may crash or hang again, each found in a process of its own; of some there are none."""
    import numpy as np

    from autotune.tvm_backend.search.features import WIDTH

    def rows(trial: Trial) -> list[Any]:
        return [[float(value) for value in row] for row in features.of_trials([trial])[0]]

    runs = isolated(trials, lambda: rows, limit_s=stage.config.build.timeout_s)
    found = {trial.hash: outcome.value if outcome.kind == "ok" else [] for trial, outcome in runs}
    return {hash: np.array(value, np.float32).reshape(len(value), WIDTH) for hash, value in found.items()}


def borrowed(stage: Stage, most: int) -> list[Sample]:
    """Trials of tasks that this job does not have, on the same kind of device, of the newest logs first."""
    own = {stage.workspace.tuning_log(stage.spec.target_key, task.hash).records for task in stage.spec.tasks}
    others = [log for log in stage.workspace.tuning_logs(stage.spec.target_key) if log.records not in own]
    found: list[Sample] = []
    for log in sorted(others, key=lambda log: -_changed(log.features)):
        if most <= 0:
            break
        sample = read(log.features)
        found.append(sample)
        most -= len(sample.hashes)
    return found


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read(path: Path) -> Sample:
    """The sample in a file; an empty one where there is none that can be read."""
    import numpy as np

    from autotune.tvm_backend.search.features import WIDTH

    try:
        with np.load(path, allow_pickle=False) as stored:
            hashes = json.loads(bytes(stored["hashes"]).decode())
            rows, times = stored["rows"], stored["times_us"]
            if rows.ndim != 2 or rows.shape[1] != WIDTH or rows.dtype != np.float32 or times.dtype != np.float64:
                return Sample()
            rows, times = np.split(rows, stored["ends"][:-1]), times.tolist()
    except Exception:  # derived data, which may be damaged in any way
        return Sample()
    return Sample(hashes, rows, times) if len(hashes) == len(rows) == len(times) else Sample()


def write(path: Path, sample: Sample) -> None:
    """Replace the file by a sample that is not empty.

    Raises:
        DiskProblem: it could not be written.
    """
    import numpy as np

    buffer = io.BytesIO()
    hashes = np.frombuffer(json.dumps(list(sample.hashes)).encode(), dtype=np.uint8)
    ends = np.cumsum([len(rows) for rows in sample.rows])
    np.savez(buffer, hashes=hashes, rows=np.concatenate(list(sample.rows)), ends=ends, times_us=sample.times_us)
    publish_bytes(path, buffer.getvalue())
