"""The file of a submitted model, of whichever format: how it is read, quantised and kept."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from autotune.errors import ModelError, disk_problem
from autotune.options import Activations, Constant, InputSpec
from autotune.processes.messages import ImportRequest
from autotune.storage.atomic import publish_bytes, publish_file, stamp
from autotune.storage.formats import KeptValue, ShapeBinding
from autotune.storage.paths import JobPaths
from autotune.storage.quantisation import Quantisation
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.models.gguf.decoder import TOKENS, Decoder
from autotune.tvm_backend.models.gguf.file import is_gguf
from autotune.tvm_backend.models.model import Model
from autotune.tvm_backend.models.onnx import checks
from autotune.tvm_backend.models.onnx.read import freeze, load_weights, parse_graph, read_model, weight_files
from autotune.tvm_backend.models.onnx.simplify import open_sizes
from autotune.tvm_backend.models.onnx.snapshot import write_model
from autotune.tvm_backend.models.pytorch.archive import is_archive
from autotune.tvm_backend.models.pytorch.program import import_program, write_fixed
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer, check_runs, is_flatbuffer
from autotune.tvm_backend.models.tflite.program import import_flatbuffer
from autotune.tvm_backend.models.tflite.state import with_open_state

Stamp = tuple[int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if it cannot be looked at, which its reader reports."""
    try:
        return stamp(path)
    except OSError:
        return None


class Source(Protocol):
    """A model in a file, as a user submits it.

    Attributes:
        state: What it keeps from one run to the next, which is inputs and outputs of what is imported.
        weights: The files that it keeps weights in, by their paths from its folder: their stamps before they were read.
    """

    state: tuple[KeptValue, ...]
    weights: Mapping[str, Stamp | None]

    def shapes(self, asked: tuple[ShapeBinding, ...]) -> tuple[ShapeBinding, ...]:
        """Return the sets of shapes that it is imported with, of those that the user asked for."""
        return asked

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, gpu: bool) -> Model:
        """Import it with a set of shapes.

        Args:
            shapes: What the user gave.
            job: The files of the job; None to write nothing.
            gpu: Whether it is for a GPU.

        Raises:
            ModelError, DiskProblem
        """

    def quantise(self, calibration: Path, max_drop: float | None, accuracy: str) -> Quantisation:
        """Quantise it to 8 bits, so that `read` and `keep` take the result in its place.

        Args:
            calibration: The file with inputs to find the ranges of values with.
            max_drop: Which part of the top-1 answers may change, or of the accuracy be lost; None for any. Layers stay
                in floats for that.
            accuracy: The command that prints how good outputs are; "" for none.

        Raises:
            ModelError: It is no ONNX model, or cannot be quantised with these inputs.
        """

    def keep(self, job: JobPaths) -> None:
        """Write what `read` did not write yet of the job's copy. The model is not read again afterwards.

        Raises:
            ModelError, DiskProblem
        """


class _OnnxFile(Source):
    """An ONNX file."""

    state: tuple[KeptValue, ...] = ()
    weights: Mapping[str, Stamp | None]

    def __init__(self, path: Path, values: Mapping[str, Constant]) -> None:
        self._path = path
        self._values = values
        self._proto = parse_graph(path)
        self.weights = {name: stamp_of(path.parent / name) for name in weight_files(self._proto)}
        load_weights(path, self._proto)
        self._asked: list[Sequence[InputSpec]] = []

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, gpu: bool) -> Model:
        overrides = {item.name: item for item in shapes.inputs}
        model = read_model(self._path, overrides, self._proto, shapes.dims, self._values, gpu=gpu)
        checks.check_runs(self._path, freeze(self._path, self._proto, self._values), model.inputs)
        self._asked.append(model.inputs)
        return model

    def quantise(self, calibration: Path, max_drop: float | None, accuracy: str) -> Quantisation:
        from autotune.tvm_backend.models.onnx.quantise import quantise  # here, for the quantiser takes 0.2 s to load

        self._proto, quantisation = quantise(self._path, self._proto, calibration, max_drop, accuracy)
        return quantisation

    def keep(self, job: JobPaths) -> None:
        """Write the model, with inputs of open sizes where the user asked for others than those that it fixes."""
        write_model(job.model, job.weights_of(job.model), open_sizes(self._proto, self._asked))


class _ExportedProgram(Source):
    """A program that PyTorch exported."""

    state: tuple[KeptValue, ...] = ()
    weights: Mapping[str, Stamp | None] = {}

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, gpu: bool) -> Model:
        overrides = {item.name: item for item in shapes.inputs}
        with scratch_folder("program") as folder:
            fixed = Path(folder) / "model.pt2" if job is None else job.program
            inputs, batches = write_fixed(self._path, overrides, shapes.dims, fixed)
            return replace(import_program(fixed, inputs, shown=self._path), open_batches=batches)

    def quantise(self, calibration: Path, max_drop: float | None, accuracy: str) -> Quantisation:
        raise _no_quantisation(self._path, "a PyTorch program")

    def keep(self, job: JobPaths) -> None:
        """Write nothing: TVM has read the copy."""


class _LiteFile(Source):
    """A model of TensorFlow Lite."""

    weights: Mapping[str, Stamp | None] = {}

    def __init__(self, path: Path) -> None:
        self._flatbuffer, self.state = with_open_state(Flatbuffer(path))

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, gpu: bool) -> Model:
        model = import_flatbuffer(self._flatbuffer, {item.name: item for item in shapes.inputs}, shapes.dims)
        check_runs(self._flatbuffer)
        return model

    def quantise(self, calibration: Path, max_drop: float | None, accuracy: str) -> Quantisation:
        raise _no_quantisation(self._flatbuffer.path, "a TensorFlow Lite model")

    def keep(self, job: JobPaths) -> None:
        publish_bytes(job.flatbuffer, self._flatbuffer.content)


class _GgufFile(Source):
    """A language model in a GGUF file: it is imported for several numbers of tokens at a time."""

    state: tuple[KeptValue, ...] = ()
    weights: Mapping[str, Stamp | None] = {}

    def __init__(self, path: Path, context: int | None, activations: Activations) -> None:
        self._path = path
        self._decoder = Decoder.read(path, context, activations)

    def shapes(self, asked: tuple[ShapeBinding, ...]) -> tuple[ShapeBinding, ...]:
        return self._decoder.shapes()

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, gpu: bool) -> Model:
        if gpu:
            raise ModelError(f"{self._path} is a GGUF file, which is for CPUs")
        return self._decoder.model(shapes.dims[TOKENS])

    def quantise(self, calibration: Path, max_drop: float | None, accuracy: str) -> Quantisation:
        raise _no_quantisation(self._path, "a GGUF file")

    def keep(self, job: JobPaths) -> None:
        copy = job.gguf.with_name(f".tmp-{job.gguf.name}")
        try:
            shutil.copyfile(self._path, copy)
        except OSError as error:
            raise disk_problem("copy the model to", job.gguf, error) from error
        publish_file(copy, job.gguf)


def open_source(request: ImportRequest) -> Source:
    """Open the file of a model. Its content says which format it has, and not its name.

    Raises:
        ModelError: It cannot be read, has no known format, or has one that cannot be imported as asked for.
    """
    path = Path(request.model)
    shapes = len(request.shapes)
    values = request.values
    if is_gguf(path):
        _check_request(path, "a GGUF file", shapes, values)
        if any(item.inputs or item.dims for item in request.shapes):
            raise ModelError(
                f"{path} is a GGUF file, which has no open shapes; --context says how many tokens it keeps"
            )
        return _GgufFile(path, request.context, request.activations)
    if request.context is not None:
        raise ModelError(f"{path} is no GGUF file; --context is for these")
    if request.activations != "fp32" and (is_archive(path) or is_flatbuffer(path)):
        raise ModelError(f"{path} is neither a GGUF nor an ONNX file; --activations is for these")
    if is_archive(path):
        _check_request(path, "a PyTorch program", shapes, values)
        return _ExportedProgram(path)
    if is_flatbuffer(path):
        _check_request(path, "a TensorFlow Lite model", shapes, values)
        return _LiteFile(path)
    return _OnnxFile(path, values)


def _no_quantisation(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is {what}; --precision int8 is for ONNX models")


def _check_request(path: Path, what: str, shapes: int, values: Mapping[str, Constant]) -> None:
    if shapes > 1:
        raise ModelError(f"{path}: only an ONNX model takes several shapes in one job")
    if values:
        raise ModelError(f"{path} is {what}; --value is for ONNX models")
