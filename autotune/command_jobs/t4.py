"""The format T4, in which Kernel Tuner and others exchange results: all trials of a job of commands.

(KernelTuner/kernel_tuner, schema/T4/1.0.0.) Times are in milliseconds. What a measurement took besides the runs that
count, such as starting its process, is in `framework`; so the sum of `times` is what the trial cost.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from autotune.metric import Metric
from autotune.storage.formats import Failure, Trial

_VERSION = "1.0.0"
_MS_PER_S = 1e3


def results(trials: Iterable[Trial], metric: Metric) -> dict[str, Any]:
    """Return trials as a document in T4.

    Args:
        trials: Of a job of commands, oldest first.
        metric: What they are measured by.
    """
    metadata = {"timeunit": "milliseconds"}
    return {"schema_version": _VERSION, "metadata": metadata, "results": [_result(trial, metric) for trial in trials]}


def _result(trial: Trial, metric: Metric) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(trial.at, datetime.UTC)
    invalidity = _invalidity(trial.failure)
    return {
        "timestamp": moment.isoformat(sep=" "),
        "configuration": trial.trace["values"],
        "times": _times(trial, metric),
        "invalidity": invalidity,
        "correctness": int(invalidity == "correct"),
        "measurements": [_measurement(trial, metric)],
        "objectives": [metric.name],
    }


def _times(trial: Trial, metric: Metric) -> dict[str, Any]:
    measured = trial.measure_s * _MS_PER_S
    runtimes = [us / 1e3 for us in trial.times_us] if metric.is_time else [measured] if trial.times_us else []
    return {
        "compilation": trial.build_s * _MS_PER_S,
        "runtimes": runtimes,
        "framework": max(0.0, round(measured - sum(runtimes), 4)),
        "search_algorithm": 0.0,
        "validation": 0.0,
    }


def _measurement(trial: Trial, metric: Metric) -> dict[str, Any]:
    if trial.median_us is None:
        failed = "CompilationFailedConfig" if _invalidity(trial.failure) == "compile" else "RuntimeFailedConfig"
        return {"name": metric.name, "value": failed, "unit": ""}
    if metric.is_time:
        return {"name": metric.name, "value": trial.median_us / 1e3, "unit": "ms"}
    return {"name": metric.name, "value": metric.from_us(trial.median_us), "unit": metric.unit}


def _invalidity(failure: Failure | None) -> str:
    if failure is None:
        return "correct"
    if failure.kind == "timeout":
        return "timeout"
    if failure.kind == "wrong":
        return "correctness"
    return "compile" if failure.stage == "build" else "runtime"
