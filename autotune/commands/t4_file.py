"""All trials of a job as one file in T4, for tools that compare how kernels are tuned.

A configuration of a job of commands is its values. One of a network is its task, its sketch and, by what each decides,
the knobs of the schedule; sketches differ in their knobs. The sketch is a checksum of the schedule without decisions.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.command_jobs import t4
from autotune.commands.report.knob_importance import decisions
from autotune.errors import BadInput, UnknownJob
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import SIMULATED, JobSpec, Trial
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog


def write(workspace: Workspace, spec: JobSpec, path: Path) -> int:
    """Write what was measured here of a job's tasks, task by task, and return how many trials that is.

    Raises:
        BadInput: Its device is simulated.
        UnknownJob: It has no trials.
        StorageError: A tuning log cannot be read, or the file not written.
    """
    if spec.target_key.startswith(SIMULATED):
        raise BadInput(f"{spec.name} ran on a simulated device: its times were not measured")
    tasks = dict.fromkeys(task.hash for task in spec.tasks)
    trials = [trial for task in tasks for trial in _of_task(workspace, spec, task)]
    if not trials:
        raise UnknownJob("there are no trials to export")
    publish_bytes(path, (json.dumps(t4.results(trials, spec.metric), indent=1) + "\n").encode())
    return len(trials)


def _of_task(workspace: Workspace, spec: JobSpec, task: str) -> list[Trial]:
    trials = TuningLog(workspace.tuning_log(spec.target_key, task).records).trials()
    return [replace(trial, trace={"values": _configuration(task, trial.trace)}) for trial in trials]


def _configuration(task: str, trace: Any) -> Mapping[str, Any]:
    if isinstance(trace, dict):
        return dict(trace["values"])
    sketch = f"{zlib.crc32(json.dumps(trace[0]).encode()):08x}"
    return {"task": task, "sketch": sketch, **decisions(trace)}
