"""Time a whole model: beside the runtime of the model as submitted, on a board, or alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.tvm_backend.export.submitted import ExportJob
from autotune.tvm_backend.export.timing.board_comparison import BoardComparison
from autotune.tvm_backend.export.timing.comparison import Runtime, RuntimeComparison, RuntimeTimes, ratios
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.export.verification.verify_model import Verified, library_runtime

# Keys of latencies in the report.
TUNED = "tuned_ms"
UNTUNED = "untuned_ms"
WITHOUT_GRAPH = "without_graph_ms"


@dataclass(frozen=True)
class Comparison:
    """The comparison of the tuned model with other runtimes, at one set of shapes.

    Attributes:
        verified: What was verified before.
        reference: The runtime of the model as submitted.
        times: The times of each runtime; None for one that ran elsewhere than the library: it cannot be compared. None
            of all if nothing was timed.
    """

    verified: Verified
    reference: str
    times: Mapping[str, RuntimeTimes | None] = field(default_factory=dict)
    kernels: Sequence[KernelTime] = ()

    def latencies(self) -> dict[str, Any]:
        """Return the part of the report that is about latencies, loading and memory."""
        if not self.times:
            return {"latency": {}, "reference": self.reference}
        return {**self._times(), **(self._reference() if f"{self.reference}_ms" in self.times else {})}

    def _times(self) -> dict[str, Any]:
        return {
            "latency": self._figures(lambda times: round(times.median_ms, 4)),
            "latency_spread": self._figures(lambda times: [round(value, 4) for value in times.spread_ms]),
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
            "load_ms": self._figures(lambda times: round(statistics.median(times.loads_ms), 2)),
            "memory_mb": self._figures(lambda times: round(statistics.median(times.memory) / 1e6, 2)),
        }

    @property
    def _tuned(self) -> RuntimeTimes:
        times = self.times[TUNED]
        assert times is not None
        return times

    def _figures(self, figure: Callable[[RuntimeTimes], Any]) -> dict[str, Any]:
        """Return a figure of each runtime; None where it was not timed."""
        return {name: figure(times) if times else None for name, times in self.times.items()}


def times_by_threads(export: ExportJob, verified: Sequence[Verified], library: Path) -> dict[int, float]:
    """Time the library of a job for CPUs on 1, 2, 4 and more threads, up to those that it was compiled for.

    Returns:
        Milliseconds of a run by the number of threads, over all sets of shapes.
    """
    request = export.request
    counts = sorted({request.threads, *(2**power for power in range(request.threads.bit_length()))})
    sums = dict.fromkeys(counts, 0.0)
    for item in verified:
        entry = item.case.entry
        runtime = library_runtime(library, "cpu", entry, export.models[0])
        runtimes = {str(count): replace(runtime, threads=count) for count in counts}
        with RuntimeComparison(runtimes, entry.inputs, item.case.inputs.arrays, request.threads) as comparison:
            times = comparison.time(request.turns, longest_s=request.compare_s)
        sums = {count: sums[count] + times[str(count)].median_ms for count in counts}
    return sums


def compare(
    export: ExportJob, verified: Verified, libraries: Mapping[str, Path], reference_threads: int = 0
) -> Comparison:
    """Time the libraries of a job at one set of shapes, beside the model as submitted where that runs on the device.

    Args:
        verified: What `verify` returned.
        libraries: The libraries by the key of their latency in the report.
        reference_threads: How many threads the model as submitted uses; 0 for as many as the libraries.
    """
    request = export.request
    model = export.models[0]
    entry = verified.case.entry
    arrays = verified.case.inputs.arrays
    if request.board is not None:
        board = BoardComparison(request.board, libraries, entry.name, arrays, request.threads, request.turns)
        return Comparison(verified, model.runtime, board.time())
    device = export.device.runtime
    # Where the model as submitted runs: its time beside that of a GPU would mean nothing.
    beside = device == "cpu" and model.is_usual
    reference = f"{model.runtime}_ms"
    runtimes = {
        **{name: library_runtime(file, device, entry, model) for name, file in libraries.items()},
        reference: Runtime(model.runtime, model.file, values=export.spec.values, threads=reference_threads),
    }
    with RuntimeComparison(runtimes, entry.inputs, arrays, request.threads) as comparison:
        apart = set[str]() if beside else {reference}
        pair = (TUNED, reference) if beside else None
        whose = WITHOUT_GRAPH if WITHOUT_GRAPH in libraries else TUNED
        # Nothing that is compared with needs to be known to a percent.
        longest_s = request.compare_s if model.is_usual else request.compare_s / len(export.models)
        timed = comparison.time(request.turns, pair=pair, without=apart, longest_s=longest_s, kernels_of=whose)
        times = {**dict.fromkeys(runtimes), **timed}
        return Comparison(verified, model.runtime, times, timed[whose].fastest_kernels())
