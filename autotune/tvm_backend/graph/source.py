"""The file that a user submits, of whichever format: how it is imported, and what of it a job keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from autotune.errors import ModelError
from autotune.storage.atomic import publish_bytes
from autotune.storage.formats import Constant, ShapeBinding
from autotune.storage.paths import JobPaths
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.graph.model import Model, parse_file, read_model
from autotune.tvm_backend.graph.pytorch.archive import is_archive
from autotune.tvm_backend.graph.pytorch.program import import_program, write_fixed
from autotune.tvm_backend.graph.snapshot import write_model
from autotune.tvm_backend.graph.tflite.flatbuffer import Flatbuffer, is_flatbuffer
from autotune.tvm_backend.graph.tflite.program import check_runs, import_flatbuffer


class Source(Protocol):
    """A model in a file, as a user submits it."""

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, half: bool) -> Model:
        """Import it with a set of shapes.

        Args:
            shapes: What the user gave.
            job: The files of the job; None to write nothing.
            half: Whether to compute float16 as such.

        Raises:
            ModelError, DiskProblem
        """

    def keep(self, job: JobPaths) -> None:
        """Write what `read` did not write yet of the job's copy. The model is not read again afterwards.

        Raises:
            ModelError, DiskProblem
        """


class _OnnxFile:
    """An ONNX file."""

    def __init__(self, path: Path, values: Mapping[str, Constant]) -> None:
        self._path, self._values = path, values
        self._proto = parse_file(path)

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, half: bool) -> Model:
        overrides = {item.name: item for item in shapes.inputs}
        return read_model(self._path, overrides, self._proto, shapes.dims, self._values, half=half)

    def keep(self, job: JobPaths) -> None:
        write_model(job.model, job.weights_of(job.model), self._proto)


class _ExportedProgram:
    """A program that PyTorch exported."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, half: bool) -> Model:
        overrides = {item.name: item for item in shapes.inputs}
        with scratch_folder("program") as folder:
            fixed = Path(folder) / "model.pt2" if job is None else job.program
            return import_program(fixed, write_fixed(self._path, overrides, shapes.dims, fixed), shown=self._path)

    def keep(self, job: JobPaths) -> None:
        """Write nothing: TVM has read the copy."""


class _LiteFile:
    """A model of TensorFlow Lite."""

    def __init__(self, path: Path) -> None:
        self._flatbuffer = Flatbuffer(path)

    def read(self, shapes: ShapeBinding, job: JobPaths | None, *, half: bool) -> Model:
        model = import_flatbuffer(self._flatbuffer, {item.name: item for item in shapes.inputs}, shapes.dims)
        check_runs(self._flatbuffer)
        return model

    def keep(self, job: JobPaths) -> None:
        publish_bytes(job.flatbuffer, self._flatbuffer.content)


def open_source(path: Path, shapes: int, values: Mapping[str, Constant]) -> Source:
    """Open a file. Its content says which format it has, and not its name.

    Args:
        path: The file.
        shapes: How many sets of shapes it is to be imported with.
        values: Inputs that are constants, by name.

    Raises:
        ModelError: It cannot be read, has no known format, or has one that cannot be imported so.
    """
    if is_archive(path):
        _check_request(path, "a PyTorch program", shapes, values)
        return _ExportedProgram(path)
    if is_flatbuffer(path):
        _check_request(path, "a TensorFlow Lite model", shapes, values)
        return _LiteFile(path)
    return _OnnxFile(path, values)


def _check_request(path: Path, what: str, shapes: int, values: Mapping[str, Constant]) -> None:
    if shapes > 1:
        raise ModelError(f"{path}: only an ONNX model takes several shapes in one job")
    if values:
        raise ModelError(f"{path} is {what}; --value is for ONNX models")
