"""The process of an export, or of one that says how a model would be: it waits for what it may use and loads TVM."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease_one
from autotune.processes.messages import ExportAnswer, ExportRequest, PlanAnswer, PlanRequest, StepReporter
from autotune.storage.formats import JobSpec
from autotune.storage.job_files import check_model, read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export.progress import LOADING, READING, Leases, NumberedSteps, gpu_of, plan
from autotune.tvm_backend.load import load_tvm


def run(request: ExportRequest | PlanRequest, progress: StepReporter) -> ExportAnswer | PlanAnswer:
    """Do what is asked for. Arguments and errors are those of `_export` and of `plan_of_job`."""
    return _plan(request, progress) if isinstance(request, PlanRequest) else _export(request, progress)


def _plan(request: PlanRequest, progress: StepReporter) -> PlanAnswer:
    paths = JobPaths(Workspace(Path(request.workspace)).jobs / request.job)
    spec = read_spec(paths)
    check_model(paths, spec)
    progress("waiting for a CPU", waiting=True)
    pin(request.cpus)
    with lease_one(Path(request.lock_folder), map(cpu_name, request.cpus)):
        progress(LOADING)
        load_tvm(spec.target_kind)
        from autotune.tvm_backend.export.describe import plan_of_job

        progress(READING)
        return PlanAnswer(plan_of_job(paths, spec, request.entry))


def _export(request: ExportRequest, progress: StepReporter) -> ExportAnswer:
    """Export the best schedules that a job has found so far.

    Args:
        request: What to export, and how.
        progress: Called with a description of each step when it starts.

    Returns:
        The report, as in `report.json`.

    Raises:
        VerificationError: The outputs of the compiled model differ from those of the model as submitted.
        BadState: This machine has no device of the target's kind.
    """
    workspace = Workspace(Path(request.workspace))
    paths = JobPaths(workspace.jobs / request.job)
    spec = read_spec(paths)
    check_model(paths, spec)
    os.environ["TVM_NUM_THREADS"] = str(request.threads)
    if len(request.measure_cpus) != os.cpu_count():
        os.environ["TVM_BIND_THREADS"] = "0"
    pin(request.cpus)
    told = NumberedSteps(progress, plan(request))
    leases = Leases(request, spec, told)
    with leases.one_cpu():
        told.begin(LOADING)
        load_tvm(spec.target_kind)
        _take_gpu(spec)
        from autotune.tvm_backend.export import steps
    return ExportAnswer(steps.export(request, workspace, paths, spec, leases))


def _take_gpu(spec: JobSpec) -> None:
    """Take the GPU of a target, for this process and those that it starts."""
    gpu = gpu_of(spec)
    if gpu is not None:
        runtime.load()
        gpu.take()
