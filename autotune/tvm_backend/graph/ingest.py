"""The TVM side of `submit`: from a model file to tasks, in a folder that is not yet a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import ModelError
from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease_one
from autotune.processes.messages import ImportAnswer, ImportRequest, StepReporter
from autotune.storage.formats import Entry, InputSpec, ShapeBinding
from autotune.storage.job_files import make_folder, model_checksum
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.graph.source import Source, open_source
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import check_tensor_cores, resolve_target, target_kind, tvm_target

if TYPE_CHECKING:
    from autotune.tvm_backend.search.tasks import Task


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


@dataclass(frozen=True)
class _Imported:
    """What is kept of a model that was imported with one set of shapes."""

    shapes: ShapeBinding
    inputs: tuple[InputSpec, ...]
    tasks: list[Task]


def _ingest(request: ImportRequest, progress: StepReporter) -> ImportAnswer:
    from autotune.tvm_backend.search.tasks import unite

    target = resolve_target(request.target, request.threads, request.board)
    if request.precision == "fp16":
        check_tensor_cores(target.description)
    progress("reading the model")
    source = open_source(Path(request.model), len(request.shapes), request.values)
    imported = _Importer(request, source, target.lowered_for, progress).all()
    tasks = unite([item.tasks for item in imported])
    size, crc = 0, 0
    if request.folder is not None:
        size, crc = _write(JobPaths(Path(request.folder)), source, [task.program for task in tasks])
    return ImportAnswer(
        target=target.description,
        target_key=target.key,
        inputs=imported[0].inputs,
        tasks=tuple(task.spec for task in tasks),
        spaces=tuple(task.space for task in tasks),
        model_size=size,
        model_crc32=crc,
        former_keys=target.former_keys,
        entries=tuple(_entry(item, tasks) for item in imported) if len(imported) > 1 else (),
    )


def _entry(imported: _Imported, tasks: Sequence[Task]) -> Entry:
    weights = {task.spec.hash: task.spec.weight for task in imported.tasks}
    counts = tuple(weights.get(task.spec.hash, 0) for task in tasks)
    return Entry(imported.shapes.name, imported.inputs, counts, imported.shapes)


class _Importer:
    """Imports a model with several sets of shapes, one after the other. One module is in memory at a time."""

    def __init__(self, request: ImportRequest, source: Source, target: Any, progress: StepReporter) -> None:
        from autotune.tvm_backend.graph.snapshot import SharedWeights

        self._request, self._source, self._progress = request, source, progress
        self._target = tvm_target(target)
        self._paths = None if request.folder is None else JobPaths(Path(request.folder))
        several = self._paths is not None and len(request.shapes) > 1
        self._weights = SharedWeights(self._paths.rewritten_weights) if self._paths and several else None

    def all(self) -> list[_Imported]:
        """Import the model with all sets of shapes.

        Raises:
            ModelError: The model cannot be imported with one of them, or two of them give its inputs the same shapes.
        """
        found: list[_Imported] = []
        for index, shapes in enumerate(self._request.shapes):
            imported = self._one(index, shapes)
            same = [item.shapes.name for item in found if item.inputs == imported.inputs]
            if same:
                both = f"{same[0]} and {shapes.name}"
                raise ModelError(f"{self._request.model}: {both} give its inputs the same shapes; leave one out")
            found.append(imported)
        return found

    def _one(self, index: int, shapes: ShapeBinding) -> _Imported:
        from autotune.tvm_backend.graph.prepare import prepare, unlowered
        from autotune.tvm_backend.search.tasks import extract_tasks

        path, count = Path(self._request.model), len(self._request.shapes)
        where = f" for {shapes.name} ({index + 1} of {count})" if count > 1 else ""
        if where:
            self._progress(f"reading the model{where}")
        model = self._source.read(shapes, self._paths, half=self._target.kind.name != "llvm")
        self._progress(f"folding, choosing layouts and fusing{where}")
        asked = self._request
        prepared = _guarded(
            path, lambda: prepare(model.module, self._target, winograd=asked.winograd, precision=asked.precision)
        )
        if left := unlowered(prepared):
            raise ModelError(f"TVM cannot lower {path}: it finds no fixed shape for the result of {', '.join(left)}")
        self._progress(f"extracting tasks{where}")
        tasks = _guarded(path, lambda: extract_tasks(prepared, self._target))
        if model.rewritten is not None and self._paths is not None:
            self._keep(self._paths, index, model.rewritten)
        return _Imported(shapes, tuple(model.inputs), tasks)

    def _keep(self, paths: JobPaths, index: int, rewritten: Any) -> None:
        """Write the graph that was made of the model for a set of shapes."""
        from autotune.tvm_backend.graph.snapshot import write_model

        if self._weights is None:
            write_model(paths.rewritten_model(), paths.rewritten_weights, rewritten)
        else:
            self._weights.write(paths.rewritten_model(index), rewritten)


def _guarded(path: Path, step: Callable[[], Any]) -> Any:
    """Map what TVM's passes raise to an error about the model."""
    try:
        return step()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"TVM cannot lower {path}: {lines[-1].strip() if lines else error!r}") from error


def _write(paths: JobPaths, source: Source, programs: list[Any]) -> tuple[int, int]:
    """Write the snapshot and programs; returns size and CRC-32 of the snapshot."""
    from autotune.tvm_backend.search.tasks import write_program

    source.keep(paths)
    make_folder(paths.tasks)
    for index, program in enumerate(programs):
        write_program(paths.task(index), program)
    return model_checksum(paths)
