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

from autotune.stages.stage import Stage
from autotune.storage.atomic import publish_bytes


@dataclass(frozen=True)
class Sample:
    """Trials of one task. `rows` has an array [stores, features] for each; a time of 0 is that of a failed trial."""

    hashes: Sequence[str] = ()
    rows: Sequence[Any] = ()
    times_us: Sequence[float] = ()

    def by_hash(self) -> dict[str, Any]:
        return dict(zip(self.hashes, self.rows, strict=True))


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

    try:
        with np.load(path, allow_pickle=False) as stored:
            hashes = json.loads(bytes(stored["hashes"]).decode())
            rows = np.split(stored["rows"], stored["ends"][:-1])
            times = stored["times_us"].tolist()
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
