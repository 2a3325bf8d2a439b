"""The report on an export: the content of `report.json`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.meta_schedule.arg_info import ArgInfo

from autotune.options import InputSpec
from autotune.processes.messages import ExportRequest
from autotune.storage.formats import Entry, JobSpec, Trial
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.export.timing.retiming import RetimedCandidate
from autotune.tvm_backend.export.timing.whole_model import Comparison
from autotune.tvm_backend.export.writing.slower import slower
from autotune.tvm_backend.kernels.roofline import Roofline
from autotune.tvm_backend.search.tasks import task_hash
from autotune.tvm_backend.target import instructions
from autotune.tvm_backend.types import IRModule, PrimFunc


@dataclass(frozen=True)
class KernelWork:
    """The work of one call of a kernel.

    Attributes:
        task: The name of the task that it is; None if it is in no task.
        gflop: Floating-point operations, in 1e9.
        bytes: The size of all its arguments. Each is read or written at least once.
    """

    task: str | None
    gflop: float
    bytes: int


@dataclass(frozen=True)
class KernelLimits:
    """What the kernels of the tuned model have to do, by name, and what the machine can do at most, if it is known."""

    work: Mapping[str, KernelWork]
    limits: Roofline | None

    def kernels(self, times: Sequence[KernelTime]) -> list[dict[str, Any]]:
        """Return the part of the report that is about kernels. `least_us` is what the machine's limits allow."""
        kernels = []
        for kernel in times:
            work = self.work.get(kernel.name, KernelWork(None, 0.0, 0))
            least = self.limits.least_us(work.gflop, work.bytes) * kernel.calls if self.limits else None
            kernels.append({**asdict(kernel), **asdict(work), "least_us": least})
        return kernels


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
    entries = [
        _entry(spec, *entry_and_comparison, limits)
        for entry_and_comparison in zip(spec.entries, comparisons, strict=False)
    ]
    return {
        "job": spec.id,
        "name": spec.name,
        "model": spec.model,
        "target": spec.target,
        "board": asdict(request.board) if request.board else None,
        "inputs": _described(spec.inputs, first.verified.case.inputs.rows),
        "instructions": instructions(spec.target, integers=any("integer_" in task.name for task in spec.tasks)),
        "values": dict(spec.values),
        "outputs": [asdict(item) for item in first.verified.outputs],
        "threads": request.threads,
        "largest_relative_error": max(comparison.verified.error for comparison in comparisons),
        "tolerance": request.tolerance,
        "sensitivity": max(comparison.verified.sensitivity for comparison in comparisons),
        **first.latencies(),
        "slower": _slower(spec, first, limits),
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
        trial = best.get(task.hash)
        retimed = again.get(task.hash)
        timed = {"best_us": trial.median_us if trial else None, "again_us": retimed.median_us if retimed else None}
        tasks.append({"name": task.name, "weight": task.weight, "gflop": task.gflop, **timed})
    return tasks


def _entry(spec: JobSpec, entry: Entry, comparison: Comparison, limits: KernelLimits) -> dict[str, Any]:
    return {
        "name": entry.name,
        "inputs": _described(entry.inputs, comparison.verified.case.inputs.rows),
        "outputs": [asdict(item) for item in comparison.verified.outputs],
        "largest_relative_error": comparison.verified.error,
        **comparison.latencies(),
        "slower": _slower(spec, comparison, limits),
        "kernels": limits.kernels(comparison.kernels),
    }


def _slower(spec: JobSpec, comparison: Comparison, limits: KernelLimits) -> dict[str, Any] | None:
    tunable = {task.name for task in spec.tasks if task.tunable}
    return slower(comparison.reference, comparison.latencies(), limits.kernels(comparison.kernels), tunable)


def kernel_work(prepared: IRModule, tasks: Mapping[str, str]) -> dict[str, KernelWork]:
    """Describe the tensor programs of a prepared model.

    Args:
        prepared: What `prepare` returned.
        tasks: The name of each task, by its hash.

    Returns:
        The work by the name of the tensor program.
    """
    work = {}
    for var, function in prepared.functions.items():
        if isinstance(function, tirx.PrimFunc):
            work[str(var.name_hint)] = _work(function, tasks)
    return work


def _work(function: PrimFunc, tasks: Mapping[str, str]) -> KernelWork:
    program = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    arguments = ArgInfo.from_entry_func(program, remove_preproc=False)
    size = sum(prod(int(dim) for dim in item.shape) * np.dtype(str(item.dtype)).itemsize for item in arguments)
    return KernelWork(tasks.get(task_hash(program)), float(estimate_tir_flops(program)) / 1e9, size)
