"""The TVM side of `submit`: from a model file to tasks, in a folder that is not yet a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.errors import ModelError
from autotune.leases import cpu_name, lease_one
from autotune.machine import pin
from autotune.storage.formats import InputSpec, from_json, to_json
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import resolve_target, target_kind


def run(request: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Import the model, extract its tasks and, unless `folder` is null, write snapshot and programs there.

    The request has `model` (path), `target` (text), `threads`, `cpus` and `lock_folder` (whose slot to
    work in), `inputs` (name to input) and `folder`. The answer has `target`, `target_key`, `inputs` and
    `tasks`, each with its `space`.

    Raises:
        ModelError, BadTarget, UnsupportedVersion, DiskProblem
    """
    progress("waiting for a CPU")
    pin(request["cpus"])
    with lease_one(Path(request["lock_folder"]), map(cpu_name, request["cpus"])):
        progress("loading TVM")
        load_tvm(target_kind(request["target"]))
        return _ingest(request, progress)


def _ingest(request: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    import tvm

    from autotune.tvm_backend.model import parse_file, read_model
    from autotune.tvm_backend.prepare import prepare
    from autotune.tvm_backend.tasks import extract_tasks

    target = resolve_target(request["target"], int(request["threads"]))
    progress("reading the model")
    path = Path(request["model"])
    overrides = {name: from_json(InputSpec, item) for name, item in request["inputs"].items()}
    proto = parse_file(path)
    model = read_model(path, overrides, proto)
    progress("folding, choosing layouts and fusing")
    tvm_target = tvm.target.Target(target.lowered_for)
    prepared = _guarded(path, lambda: prepare(model.module, tvm_target))
    progress("extracting tasks")
    tasks = _guarded(path, lambda: extract_tasks(prepared, tvm_target))
    if request["folder"] is not None:
        _write(JobPaths(Path(request["folder"])), proto, [task.program for task in tasks])
    return {
        "target": target.description,
        "target_key": target.key,
        "inputs": [to_json(item) for item in model.inputs],
        "tasks": [{**to_json(task.spec), "space": task.space} for task in tasks],
    }


def _guarded(path: Path, step: Callable[[], Any]) -> Any:
    """Map what TVM's passes raise to an error about the model."""
    try:
        return step()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"TVM cannot lower {path}: {lines[-1].strip() if lines else error!r}") from error


def _write(paths: JobPaths, proto: Any, programs: list[Any]) -> None:
    from autotune.storage.atomic import publish_bytes
    from autotune.tvm_backend.tasks import write_program

    publish_bytes(paths.model, proto.SerializeToString())
    paths.tasks.mkdir()
    for index, program in enumerate(programs):
        write_program(paths.task(index), program)
