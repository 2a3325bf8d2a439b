"""The TVM side of `submit`: from a model file to tasks, in a folder that is not yet a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.errors import ModelError
from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease_one
from autotune.processes.messages import ImportAnswer, ImportRequest, StepReporter
from autotune.storage.job_files import make_folder, model_checksum
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import resolve_target, target_kind


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
        return _ingest(request, progress)


def _ingest(request: ImportRequest, progress: StepReporter) -> ImportAnswer:
    import tvm

    from autotune.tvm_backend.graph.model import parse_file, read_model
    from autotune.tvm_backend.graph.prepare import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    target = resolve_target(request.target, request.threads)
    progress("reading the model")
    path = Path(request.model)
    overrides = {item.name: item for item in request.inputs}
    proto = parse_file(path)
    model = read_model(path, overrides, proto, request.dims, request.values)
    progress("folding, choosing layouts and fusing")
    tvm_target = tvm.target.Target(target.lowered_for)
    prepared = _guarded(path, lambda: prepare(model.module, tvm_target, winograd=request.winograd))
    progress("extracting tasks")
    tasks = _guarded(path, lambda: extract_tasks(prepared, tvm_target))
    size, crc = 0, 0
    if request.folder is not None:
        size, crc = _write(JobPaths(Path(request.folder)), proto, model.rewritten, [task.program for task in tasks])
    return ImportAnswer(
        target=target.description,
        target_key=target.key,
        inputs=tuple(model.inputs),
        tasks=tuple(task.spec for task in tasks),
        spaces=tuple(task.space for task in tasks),
        model_size=size,
        model_crc32=crc,
        former_keys=target.former_keys,
    )


def _guarded(path: Path, step: Callable[[], Any]) -> Any:
    """Map what TVM's passes raise to an error about the model."""
    try:
        return step()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"TVM cannot lower {path}: {lines[-1].strip() if lines else error!r}") from error


def _write(paths: JobPaths, proto: Any, rewritten: Any, programs: list[Any]) -> tuple[int, int]:
    """Write snapshot, the graph that was made of it, if any, and programs; returns size and CRC-32 of the snapshot."""
    from autotune.tvm_backend.graph.snapshot import write_model
    from autotune.tvm_backend.search.tasks import write_program

    if rewritten is not None:
        write_model(paths.rewritten_model, paths.weights_of(paths.rewritten_model), rewritten)
    write_model(paths.model, paths.weights_of(paths.model), proto)
    make_folder(paths.tasks)
    for index, program in enumerate(programs):
        write_program(paths.task(index), program)
    return model_checksum(paths)
