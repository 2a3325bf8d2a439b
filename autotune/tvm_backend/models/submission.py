"""A submitted model: the file of whichever format, what is imported of it, and what of it a job keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tvm import relax

from autotune.errors import BadInput, ModelError
from autotune.network_plan.plan import NOTHING, text
from autotune.options import AUTO, AskedPrecision, InputSpec, Precision
from autotune.processes.messages import ImportAnswer, ImportRequest, StepReporter
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import Entry, OpenBatch, ShapeBinding
from autotune.storage.job_files import make_folder, model_checksum
from autotune.storage.model_digest import ModelDigest, digest_of
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.expressions import bindings_of, called_program, constant_bytes, has_fixed_sizes, op_name
from autotune.tvm_backend.isa.available import computes_bfloat16
from autotune.tvm_backend.lowering import prepare, unlowered
from autotune.tvm_backend.models.model import Model
from autotune.tvm_backend.models.onnx.operators.nodes import ADVICE
from autotune.tvm_backend.models.onnx.snapshot import SharedWeights, write_model
from autotune.tvm_backend.models.sources import Source, Stamp, open_source, stamp_of
from autotune.tvm_backend.operators.few_bit_product import has_packed_products
from autotune.tvm_backend.search.tasks import Task, extract_tasks, unite, write_program
from autotune.tvm_backend.target import check_tensor_cores, resolve_target, tvm_target
from autotune.tvm_backend.types import IRModule, ModelProto, PrimFunc
from autotune.tvm_backend.untrusted_programs import check_program

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Imported:
    """What is kept of a model that was imported with one set of shapes."""

    shapes: ShapeBinding
    inputs: tuple[InputSpec, ...]
    tasks: list[Task]
    open_batches: tuple[OpenBatch, ...]
    constant_bytes: int


def import_submitted(request: ImportRequest, progress: StepReporter) -> ImportAnswer:
    """Import the model that a request names. Errors are those of `ingest.run`."""
    target = resolve_target(request.target, request.threads, request.board)
    on_gpu = target.description["kind"] == "cuda"
    if request.precision in ("fp16", "tf32") or (request.precision == "bf16" and on_gpu):
        check_tensor_cores(target.description, request.precision)
    precision = chosen_precision(request.precision, target.description)
    progress("reading the model")
    path = Path(request.model)
    before = stamp_of(path)
    source = open_source(request)
    request = replace(request, shapes=source.shapes(request.shapes))
    quantisation = None
    if request.calibrate:
        progress("quantising to int8")
        quantisation = source.quantise(Path(request.calibrate), request.max_drop, request.accuracy)
    imported = _Importer(request, precision, source, target.lowered_for, progress).all()
    tasks = unite([item.tasks for item in imported])
    size = 0
    crc = 0
    digest = None
    if request.folder is not None:
        paths = JobPaths(Path(request.folder))
        size, crc = _write(paths, source, [task.program for task in tasks])
        digest = _digest(path, {path.name: before, **source.weights})
        if request.plan != NOTHING:
            publish_bytes(paths.plan, text(request.plan).encode())
    return ImportAnswer(
        target=target.description,
        target_key=target.key,
        constant_bytes=max(item.constant_bytes for item in imported),
        inputs=imported[0].inputs,
        tasks=tuple(task.spec for task in tasks),
        spaces=tuple(task.space for task in tasks),
        model_size=size,
        model_crc32=crc,
        entries=tuple(_entry(item, tasks) for item in imported) if len(imported) > 1 else (),
        quantisation=quantisation,
        precision=precision,
        state=source.state,
        open_batches=imported[0].open_batches,
        digest=digest,
    )


def _digest(path: Path, before: Mapping[str, Stamp | None]) -> ModelDigest:
    """Return the digest of a model, if its files are still those that were read: these were their stamps before."""
    try:
        digest = digest_of(path, [name for name in before if name != path.name])
    except OSError as error:
        raise ModelError(f"cannot read {path} again: {error.strerror}") from error
    if any(stamp_of(path.parent / name) != earlier for name, earlier in before.items()):
        raise ModelError(f"{path} was changed while it was read; submit it again")
    return digest


def chosen_precision(asked: AskedPrecision, description: Mapping[str, Any]) -> Precision:
    """Return what a model is computed in: `auto` is bf16 where the CPU of a target has instructions for it.

    GPUs compute in fp32 unless asked for less: fp16 has a smaller range of values.
    """
    if asked != AUTO:
        return asked
    on_cpu = description["kind"] == "llvm"
    return "bf16" if on_cpu and computes_bfloat16(tvm_target(description)) else "fp32"


def _entry(imported: _Imported, tasks: Sequence[Task]) -> Entry:
    weights = {task.spec.hash: task.spec.weight for task in imported.tasks}
    counts = tuple(weights.get(task.spec.hash, 0) for task in tasks)
    return Entry(imported.shapes.name, imported.inputs, counts, imported.shapes)


class _Importer:
    """Imports a model with several sets of shapes, one after the other. One module is in memory at a time."""

    def __init__(
        self,
        request: ImportRequest,
        precision: Precision,
        source: Source,
        target: Mapping[str, Any],
        progress: StepReporter,
    ) -> None:
        self._request = request
        self._precision = precision
        self._source = source
        self._progress = progress
        self._target = tvm_target(target)
        self._paths = None if request.folder is None else JobPaths(Path(request.folder))
        several = self._paths is not None and len(request.shapes) > 1
        self._weights = SharedWeights(self._paths.rewritten_weights) if self._paths and several else None

    def all(self) -> list[_Imported]:
        """Import the model with all sets of shapes.

        Raises:
            ModelError: The model cannot be imported with one of them, or two of them give its inputs the same shapes.
        """
        models: list[_Imported] = []
        for index, shapes in enumerate(self._request.shapes):
            imported = self._one(index, shapes)
            same = [item.shapes.name for item in models if item.inputs == imported.inputs]
            if same:
                both = f"{same[0]} and {shapes.name}"
                raise ModelError(f"{self._request.model}: {both} give its inputs the same shapes; leave one out")
            models.append(imported)
        return models

    def _one(self, index: int, shapes: ShapeBinding) -> _Imported:
        path = Path(self._request.model)
        count = len(self._request.shapes)
        which = f" for {shapes.name} ({index + 1} of {count})" if count > 1 else ""
        if which:
            self._progress(f"reading the model{which}")
        model = self._source.read(shapes, self._paths, gpu=self._target.kind.name != "llvm")
        self._progress(f"folding, choosing layouts and fusing{which}")
        with _about_sizes(path, model.module):
            prepared = _guarded(path, lambda: self._prepared(model))
            if left := unlowered(prepared):
                raise ModelError(f"TVM cannot lower {path}: it finds no rule for {', '.join(left)}")
            if self._request.activations != "fp32" and not has_packed_products(prepared):
                raise ModelError(f"{path}: no product has packed weights for this target; leave out --activations")
            self._progress(f"extracting tasks{which}")
            tasks = _guarded(path, lambda: _checked(extract_tasks(prepared, self._target)))
        if model.rewritten is not None and self._paths is not None:
            self._keep(self._paths, index, model.rewritten)
        named = {batch.dim: 1 for batch in model.open_batches if batch.dim}
        shapes = replace(shapes, dims=shapes.dims | named)  # as if it had been given
        return _Imported(shapes, tuple(model.inputs), tasks, model.open_batches, constant_bytes(prepared))

    def _prepared(self, model: Model) -> IRModule:
        asked = self._request
        return prepare(
            model.module,
            self._target,
            winograd=asked.winograd,
            precision=self._precision,
            activations=asked.activations,
            plan=asked.plan,
            memory_mb=asked.memory_mb,
        )

    def _keep(self, paths: JobPaths, index: int, rewritten: ModelProto) -> None:
        """Write the graph that was made of the model for a set of shapes."""
        if self._weights is None:
            write_model(paths.rewritten_model(), paths.rewritten_weights, rewritten)
        else:
            self._weights.write(paths.rewritten_model(index), rewritten)


def _checked(tasks: list[Task]) -> list[Task]:
    """Return tasks whose programs can be read again: `read_program` refuses calls that it does not know."""
    for task in tasks:
        check_program(task.program)
    return tasks


@contextlib.contextmanager
def _about_sizes(path: Path, module: IRModule) -> Iterator[None]:
    """Say of a model that cannot be lowered if a size in it depends on values: kernels are for fixed sizes.

    Raises:
        ModelError: As the block raises it, or with the operator whose result has no fixed size.
    """
    try:
        yield
    except ModelError as error:
        operator = _of_open_size(module)
        if not operator:
            raise
        advice = f"fix an input that decides with --value, or end the model before it; {ADVICE}"
        reason = f"the size of the result of {operator} depends on the values of its inputs"
        raise ModelError(f"cannot import {path}: {reason}; {advice}") from error


def _of_open_size(module: IRModule) -> str:
    """Return the name of the first operator whose result has no fixed size; empty if there is none."""
    for binding in bindings_of(module["main"]):
        kind = binding.var.ty
        if isinstance(kind, relax.TensorType) and not has_fixed_sizes(kind.shape):
            return op_name(binding.value) or called_program(binding.value)
    return ""


def _guarded(path: Path, step: Callable[[], Result]) -> Result:
    """Map what TVM's passes raise to an error about the model."""
    try:
        return step()
    except BadInput:  # from a plan that cannot be followed
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"TVM cannot lower {path}: {lines[-1].strip() if lines else error!r}") from error


def _write(paths: JobPaths, source: Source, programs: Sequence[PrimFunc]) -> tuple[int, int]:
    """Write the snapshot and programs; returns size and CRC-32 of the snapshot."""
    source.keep(paths)
    make_folder(paths.tasks)
    for index, program in enumerate(programs):
        write_program(paths.task(index), program)
    return model_checksum(paths)
