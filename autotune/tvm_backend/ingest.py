"""The process that imports a model for `submit`: it waits for a CPU, loads TVM, and writes tasks to a folder."""

from __future__ import annotations

from pathlib import Path

from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease_one
from autotune.processes.messages import ImportAnswer, ImportRequest, StepReporter
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import target_kind


def run(request: ImportRequest, progress: StepReporter) -> ImportAnswer:
    """Import the model, extract its tasks and, unless `folder` is None, write snapshot and programs there.

    Raises:
        ModelError, BadTarget, UnsupportedVersion, DiskProblem
    """
    progress("waiting for a CPU", waiting=True)
    pin(request.cpus)
    with lease_one(Path(request.lock_folder), map(cpu_name, request.cpus)):
        progress("loading TVM")
        load_tvm(target_kind(request.target))
        from autotune.tvm_backend.models.submission import import_submitted

        answer = import_submitted(request, progress)
        if request.folder is None:
            return answer
        from autotune.tvm_backend.export.verification.foreseen import judged

        progress("measuring how far its own runtime is from itself")
        return judged(JobPaths(Path(request.folder)), request, answer)
