"""The report on an export, the content of `report.json`, and what holds back a library slower than the model."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.machine.hardware import cpu_model
from autotune.options import InputSpec
from autotune.processes.messages import ExportRequest
from autotune.storage.formats import Entry, JobSpec, Trial
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export.model_times import Comparison
from autotune.tvm_backend.export.ready_library import KernelWork
from autotune.tvm_backend.export.timing.kernel_times import KernelTime
from autotune.tvm_backend.export.timing.retiming import RetimedCandidate
from autotune.tvm_backend.kernels.roofline import Roofline
from autotune.tvm_backend.target import instructions

_SLOWER = 1.02  # times the reference's time. Processes differ by less.
_MAX_NAMED = 3  # kernels that are named
_LIKELY = 0.5  # the part of its distance from the machine's limit that more trials may take off a kernel


@dataclass(frozen=True)
class KernelLimits:
    """What the kernels of the tuned model have to do, and what the machine can do at most.

    Attributes:
        work: That of each kernel by its name, as in `ModelFacts`.
        limits: What the machine can do; None if it is not known.
        cache_bytes: What the L2 caches of the model's threads hold together.
    """

    work: Mapping[str, Sequence[KernelWork]]
    limits: Roofline | None
    cache_bytes: int = 0

    def kernels(self, times: Sequence[KernelTime]) -> list[dict[str, Any]]:
        """Return the part of the report that is about kernels.

        `least_us` is what the machine's limits allow, and `bound` which of them it is: `arithmetic` or `bandwidth`.
        The work of a kernel that depends on the values it is given is None, and so is its limit.
        """
        return [{**asdict(kernel), **self._work_of(kernel)} for kernel in times]

    def _work_of(self, kernel: KernelTime) -> dict[str, Any]:
        joined = self.work.get(kernel.name, (KernelWork(None, 0.0, 0),))
        work = joined[0] if len(joined) == 1 else _together(joined)
        told = {"task": work.task, "rate": work.rate}
        if not work.fixed:
            return {**told, **dict.fromkeys(("gflop", "bytes", "streamed", "least_us", "bound"))}
        streamed = sum(item.streamed(self.cache_bytes) for item in joined)
        least = self._least(work, streamed, kernel.calls)
        return {**told, "gflop": work.gflop, "bytes": work.bytes, "streamed": streamed, **least}

    def _least(self, work: KernelWork, streamed: int, calls: int) -> dict[str, Any]:
        if self.limits is None:
            return {"least_us": None, "bound": None}
        arithmetic_us = self.limits.arithmetic_us(work.gflop, work.rate) * calls
        moving_us = self.limits.moving_us(streamed) * calls
        bound = "arithmetic" if arithmetic_us >= moving_us else "bandwidth"
        return {"least_us": max(arithmetic_us, moving_us), "bound": bound}


def report(
    paths: JobPaths,
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
        paths: The files of the job.
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
        "digest": asdict(spec.digest) if spec.digest else None,
        "cpu": None if request.board else cpu_model(),
        "target": spec.target,
        "board": asdict(request.board) if request.board else None,
        "inputs": _described(spec.inputs, first.verified.case.inputs.rows),
        "precision": spec.precision,
        "activations_in": spec.activations,
        "quantisation": asdict(spec.quantisation) if spec.quantisation else None,
        "quantised_model": quantised_model(paths, spec),
        "instructions": required_instructions(spec, limits.work),
        "values": dict(spec.values),
        "outputs": [asdict(item) for item in first.verified.outputs],
        "threads": request.threads,
        "largest_relative_error": max(comparison.verified.error for comparison in comparisons),
        "tolerance": request.tolerance,
        "own_error": max(comparison.verified.own_error for comparison in comparisons),
        "choices": [asdict(choice) for comparison in comparisons for choice in comparison.verified.choices],
        "in_float32": _nearness(comparisons),
        **first.latencies(),
        "slower": _slower(spec, first, limits),
        "source": request.source,
        "tasks": _tasks(spec, best, again),
        **({"entries": entries} if entries else {}),
        "exported_at": time.time(),
        "roofline": asdict(limits.limits) if limits.limits else None,
        "kernels": limits.kernels(first.kernels),
    }


def quantised_model(paths: JobPaths, spec: JobSpec) -> str | None:
    """Return the path of the model that a calibrated job computes, which others can run; None for other jobs."""
    return str(paths.model) if spec.quantisation else None


def _nearness(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """Return the distances to a reference in float32 where the library does worst; None if none was needed."""
    told = [item.verified.nearness for item in comparisons if item.verified.nearness is not None]
    return asdict(max(told, key=lambda item: item.ours)) if told else None


def required_instructions(spec: JobSpec, kernels: Iterable[str]) -> list[str]:
    """Return the sets of instructions that a library may use, as `cpu_flags` names them.

    Args:
        kernels: The names of the kernels. Those that are scheduled are no tasks.
    """
    names = (*kernels, *(task.name for task in spec.tasks))
    integers = spec.activations == "int8" or any("integer_" in name for name in names)
    return instructions(spec.target, integers=integers, bfloat16=spec.precision == "bf16")


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


def _together(work: Sequence[KernelWork]) -> KernelWork:
    """Return the work of kernels that run beside each other."""
    operations = sum(item.gflop for item in work)
    in_float32 = sum(item.gflop / item.rate for item in work)
    rate = operations / in_float32 if in_float32 else 1.0
    moved = sum(item.bytes for item in work)
    constants = sum(item.constants for item in work)
    return KernelWork(None, operations, moved, rate, constants, all(item.fixed for item in work))


def slower(
    reference: str, latencies: Mapping[str, Any], kernels: Sequence[Mapping[str, Any]], tunable: Collection[str]
) -> dict[str, Any] | None:
    """Return why a library is slower than the model as submitted; None if it is not, or that was not timed.

    Args:
        reference: The runtime of the model as submitted.
        latencies: The part of the report that is about latencies.
        kernels: The part of the report that is about kernels.
        tunable: The names of the tasks that trials can make faster.

    Returns:
        `than`, the reference; `ratio`, our time divided by its; `kernels`, the few that are furthest from what the
        machine allows, each with its `name`, its `share` of the model's time and `of_limit`, its speed as a part of
        what the machine allows, None where that is not known; `between`, the share of the time that is in no kernel;
        and `more_trials`, whether they may close the gap.
    """
    shares = latencies.get(f"share_of_{reference}")
    if not shares or shares[0] < _SLOWER:
        return None
    tuned_us = latencies["latency"]["tuned_ms"] * 1e3
    spare = {kernel["name"]: kernel["us"] - (kernel["least_us"] or 0.0) for kernel in kernels}
    furthest = sorted(kernels, key=lambda kernel: -spare[kernel["name"]])[:_MAX_NAMED]
    gain_us = _LIKELY * sum(spare[kernel["name"]] for kernel in kernels if kernel["task"] in tunable)
    return {
        "than": reference,
        "ratio": shares[0],
        "kernels": [_held_back(kernel, tuned_us) for kernel in furthest],
        "between": max(0.0, 1 - sum(kernel["us"] for kernel in kernels) / tuned_us),
        "more_trials": gain_us >= tuned_us * (1 - 1 / shares[0]),
    }


def _held_back(kernel: Mapping[str, Any], tuned_us: float) -> dict[str, Any]:
    limit = None if kernel["least_us"] is None else min(1.0, kernel["least_us"] / kernel["us"])
    return {"name": kernel["name"], "share": kernel["us"] / tuned_us, "of_limit": limit}
