"""The report on an export: the content of `report.json`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.processes.messages import ExportRequest
from autotune.storage.formats import Entry, InputSpec, JobSpec, Trial
from autotune.tvm_backend.export.kernel_times import KernelTime
from autotune.tvm_backend.export.kernel_work import KernelWork
from autotune.tvm_backend.export.retiming import RetimedCandidate
from autotune.tvm_backend.export.runtime_comparison import RuntimeTimes, ratios
from autotune.tvm_backend.kernels.roofline import Roofline
from autotune.tvm_backend.target import instructions


@dataclass(frozen=True)
class Comparison:
    """The comparison of the tuned model with other runtimes, at one set of shapes.

    Attributes:
        error: The largest relative error of the tuned model.
        times: The times of each runtime; None for one that ran elsewhere than the library: it cannot be compared.
        kernels: The times of the kernels of the tuned model.
        outputs: The outputs of the model.
        rows: For inputs that are indices, the number of rows of the table.
        reference: The runtime of the model as submitted.
        sensitivity: How much its outputs move with the last bit of the inputs, where that is what was allowed; else 0.
    """

    error: float
    times: Mapping[str, RuntimeTimes | None]
    kernels: Sequence[KernelTime]
    outputs: tuple[InputSpec, ...]
    rows: Mapping[str, int]
    reference: str
    sensitivity: float

    def latencies(self) -> dict[str, Any]:
        """Return the part of the report that is about latencies, loading and memory."""
        return {**self._times(), **(self._reference() if f"{self.reference}_ms" in self.times else {})}

    def _times(self) -> dict[str, Any]:
        return {
            "latency": self._each(lambda item: round(item.median_ms, 4)),
            "latency_spread": self._each(lambda item: [round(value, 4) for value in item.spread_ms]),
            "reference": self.reference,
            "processes": len(self._tuned.turns_ms),
        }

    def _reference(self) -> dict[str, Any]:
        """Return what compares it with the model as submitted, and what is only known where that could be timed."""
        theirs = self.times[f"{self.reference}_ms"]
        shares = ratios(self._tuned, theirs) if theirs else None
        return {
            f"share_of_{self.reference}": shares
            and [round(value, 4) for value in (statistics.median(shares), min(shares), max(shares))],
            "load_ms": self._each(lambda item: round(statistics.median(item.loads_ms), 2)),
            "memory_mb": self._each(lambda item: round(statistics.median(item.memory) / 1e6, 2)),
        }

    @property
    def _tuned(self) -> RuntimeTimes:
        found = self.times["tuned_ms"]
        assert found is not None
        return found

    def _each(self, figure: Callable[[RuntimeTimes], Any]) -> dict[str, Any]:
        """Return a figure of each runtime; None where it was not timed."""
        return {name: figure(item) if item else None for name, item in self.times.items()}


@dataclass(frozen=True)
class KernelLimits:
    """What the kernels of the tuned model have to do, by name, and what the machine can do at most, if it is known."""

    work: Mapping[str, KernelWork]
    limits: Roofline | None

    def kernels(self, times: Sequence[KernelTime]) -> list[dict[str, Any]]:
        """Return the part of the report that is about kernels. `least_us` is what the machine's limits allow."""
        found = []
        for kernel in times:
            item = self.work.get(kernel.name, KernelWork(None, 0.0, 0))
            least = self.limits.least_us(item.gflop, item.bytes) * kernel.calls if self.limits else None
            found.append({**asdict(kernel), **asdict(item), "least_us": least})
        return found


def report(
    spec: JobSpec,
    request: ExportRequest,
    best: Mapping[str, Trial],
    again: Mapping[str, RetimedCandidate],
    comparisons: Sequence[Comparison],
    limits: KernelLimits,
) -> dict[str, Any]:
    """Return the report.

    What depends on the shapes is that of the first entry. If there are several, `entries` has it for each of them.

    Args:
        spec: The job.
        request: What was exported, and how.
        best: The trial of each task that was compiled, by the hash of the task.
        again: The candidates that were timed again, by the hash of the task.
        comparisons: The comparison at each set of shapes of the job, in order.
        limits: The work of the kernels and the limits of the machine.
    """
    first = comparisons[0]
    entries = [_entry(*each, limits) for each in zip(spec.entries, comparisons, strict=False)]
    return {
        "job": spec.id,
        "name": spec.name,
        "model": spec.model,
        "target": spec.target,
        "board": asdict(request.board) if request.board else None,
        "inputs": _described(spec.inputs, first.rows),
        "instructions": instructions(spec.target),
        "values": dict(spec.values),
        "outputs": [asdict(item) for item in first.outputs],
        "threads": request.threads,
        "largest_relative_error": max(comparison.error for comparison in comparisons),
        "tolerance": request.tolerance,
        "sensitivity": max(comparison.sensitivity for comparison in comparisons),
        **first.latencies(),
        "source": request.source,
        "tasks": _tasks(spec, best, again),
        **({"entries": entries} if entries else {}),
        "exported_at": time.time(),
        "roofline": asdict(limits.limits) if limits.limits else None,
        "kernels": limits.kernels(first.kernels),
    }


def _described(inputs: Sequence[InputSpec], rows: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{**asdict(item), **({"rows": rows[item.name]} if item.name in rows else {})} for item in inputs]


def _tasks(spec: JobSpec, best: Mapping[str, Trial], again: Mapping[str, RetimedCandidate]) -> list[dict[str, Any]]:
    tasks = []
    for task in spec.tasks:
        trial, retimed = best.get(task.hash), again.get(task.hash)
        timed = {"best_us": trial.median_us if trial else None, "again_us": retimed.median_us if retimed else None}
        tasks.append({"name": task.name, "weight": task.weight, "gflop": task.gflop, **timed})
    return tasks


def _entry(entry: Entry, comparison: Comparison, limits: KernelLimits) -> dict[str, Any]:
    return {
        "name": entry.name,
        "inputs": _described(entry.inputs, comparison.rows),
        "outputs": [asdict(item) for item in comparison.outputs],
        "largest_relative_error": comparison.error,
        **comparison.latencies(),
        "kernels": limits.kernels(comparison.kernels),
    }
