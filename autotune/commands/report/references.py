"""The latencies of the whole model that its last export measured: tuned, untuned, and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import DamagedFile
from autotune.storage import formats
from autotune.storage.paths import JobPaths


@dataclass(frozen=True)
class References:
    """What an export measured. Times are milliseconds of a run of the whole model.

    Attributes:
        tuned_ms: The exported library.
        untuned_ms: TVM's default schedules; None if they were not timed.
        others_ms: Other runtimes, by name.
        threads: The threads that each ran on.
        exported_at: When, in epoch seconds.
    """

    FORMAT = ("autotune-exported", 1)

    tuned_ms: float
    untuned_ms: float | None
    others_ms: dict[str, float]
    threads: int
    exported_at: float

    @property
    def named(self) -> dict[str, float]:
        """All of them by the name that people know."""
        untuned = {} if self.untuned_ms is None else {"untuned": self.untuned_ms}
        return {"exported library": self.tuned_ms, **self.others_ms, **untuned}


_NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def remember(paths: JobPaths, report: Mapping[str, Any]) -> None:
    """Write what an export measured into the job's folder, for later reports.

    Raises:
        StorageError: It cannot be written.
    """
    formats.write(paths.exported, _of_report(report))


def _of_report(report: Mapping[str, Any]) -> References:
    found = report["latency"].items()
    times = {name[:-3]: float(ms) for name, ms in found if name.endswith("_ms") and isinstance(ms, (int, float))}
    tuned, untuned = times.pop("tuned"), times.pop("untuned", None)
    others = {_NAMES.get(name, name): ms for name, ms in times.items()}
    return References(tuned, untuned, others, int(report["threads"]), float(report["exported_at"]))


def recall(paths: JobPaths) -> References | None:
    """Return what the last export measured; None if there was none, or its file is damaged.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    try:
        return formats.read(References, paths.exported)
    except (FileNotFoundError, DamagedFile):
        return None
