"""Read an ONNX file into a Relax module, with errors that say what is wrong with the file."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import ModelError, first_line
from autotune.storage.formats import Constant, InputSpec
from autotune.tvm_backend.graph.fold import fold
from autotune.tvm_backend.graph.operators.lower import is_lowered, lower, lower_powers
from autotune.tvm_backend.graph.shapes import resolve_inputs
from autotune.tvm_backend.graph.simplify import fix_shapes, is_unfinished, simplify
from autotune.tvm_backend.graph.snapshot import is_large
from autotune.tvm_backend.graph.values import freeze
from autotune.tvm_backend.graph.widen import has_halves, widen


@dataclass(frozen=True)
class Model:
    """An imported model. `module` is TVM's; inputs and outputs are in the order of the graph.

    `rewritten` is the ONNX graph that TVM was given where it is not the one in the file.
    """

    module: Any
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    rewritten: Any = None


def read_model(
    path: Path,
    overrides: Mapping[str, InputSpec],
    proto: Any = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Constant] | None = None,
    *,
    half: bool = False,
) -> Model:
    """Import an ONNX file.

    A graph that the importer takes is given to it as it is. One that computes shapes or has operators that the
    importer lacks is simplified and rewritten before, as is one that the importer refuses.

    Args:
        proto: The parsed file, where `parse_file` has read it already.
        overrides: Shapes (and types) that the user gave for inputs by name; an empty dtype keeps the model's.
        dims: Sizes of open dimensions by their names.
        values: Inputs that are constants, by name; the model has these inputs no more.
        half: Whether to compute float16 as such, as GPUs do, and not in float32.

    Raises:
        ModelError: The file cannot be read, is not ONNX, is empty, has an unknown dimension or an operator
            that the importer does not support; one line that says which.
    """
    proto = freeze(path, parse_file(path) if proto is None else proto, values or {})
    inputs = resolve_inputs(path, proto, overrides, dims)
    outputs = tuple(output.name for output in proto.graph.output)
    graph = widen(proto) if has_halves(proto) and not half else proto
    with _about(path):
        graph = graph if is_large(graph) else lower_powers(graph)
    if not values and not is_unfinished(graph) and is_lowered(graph):
        with contextlib.suppress(ModelError):
            return Model(_import(path, graph, inputs), inputs, outputs, None if graph is proto else graph)
    with _about(path):
        rewritten, refused = _rewritten(graph, inputs)
    try:
        return Model(_import(path, rewritten, inputs), inputs, outputs, rewritten)
    except ModelError as error:
        if refused is None or isinstance(error.__cause__, NotImplementedError):
            raise
        raise ModelError(f"cannot import {path}: {refused}") from error


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Map what type inference and the rewrites raise at a malformed graph, which may be anything."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, ModelError) else f"{type(error).__name__}: "
        raise ModelError(f"cannot import {path}: {kind}{first_line(error)}") from error


def read_rewritten(path: Path, inputs: tuple[InputSpec, ...]) -> Model:
    """Import a graph that `read_model` has rewritten before, exactly as it is.

    Raises:
        ModelError: As for `read_model`.
    """
    proto = parse_file(path)
    return Model(_import(path, proto, inputs), inputs, tuple(output.name for output in proto.graph.output), proto)


def _rewritten(proto: Any, inputs: tuple[InputSpec, ...]) -> tuple[Any, ModelError | None]:
    """The graph simplified, with operators that the importer has; what is written for others is simplified, too.

    Where ONNX Runtime cannot read the last of these graphs it stays as it is, and the error says why.
    """
    graph, refused = _simplified(fix_shapes(proto, inputs), inputs)
    while not is_lowered(graph):
        graph, refused = _simplified(lower(graph), inputs)
    return (graph if is_large(graph) else lower_powers(graph)), refused


def _simplified(graph: Any, inputs: tuple[InputSpec, ...]) -> tuple[Any, ModelError | None]:
    refused = None
    try:
        graph = simplify(graph, inputs)
    except ModelError as error:
        refused = error
    return (fold(graph) if is_unfinished(graph) and not is_large(graph) else graph), refused


def parse_file(path: Path) -> Any:
    """The ONNX graph in a file, with the weights that it keeps in other files.

    Raises:
        ModelError: As for `read_model`.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load(str(path))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (DecodeError, ValueError) as error:
        known = "autotune reads ONNX, TensorFlow Lite, and what torch.export.save wrote"
        raise ModelError(f"{path} is not an ONNX file, or is cut short; {known}") from error
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{path}: {first_line(error)}") from error
    if not proto.graph.node:
        raise ModelError(f"{path} has no operators: an empty graph, or not an ONNX file")
    return proto


def _import(path: Path, proto: Any, inputs: tuple[InputSpec, ...]) -> Any:
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    from autotune.tvm_backend.graph.empty import drop_empty_parts

    shapes = {item.name: list(item.shape) for item in inputs}
    dtypes = {item.name: item.dtype for item in inputs}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return drop_empty_parts(from_onnx(proto, shapes, dtypes))
    except tvm.error.OpNotImplemented as error:
        raise ModelError(f"{path} has operators that TVM's importer does not support: {_operators(error)}") from error
    except Exception as error:  # the importer raises whatever its converters stumble over
        reason = _dangling(proto, error) or f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"cannot import {path}: {reason}") from error


def _dangling(proto: Any, error: Exception) -> str:
    """The line for an operator that reads what is not there, which the importer reports as a key it lacks."""
    name = error.args[0] if isinstance(error, KeyError) and error.args else None
    readers = [node.op_type for node in proto.graph.node if name in node.input]
    return f"{readers[0]} reads {name!r}, which nothing before it makes" if readers else ""


def _operators(error: Exception) -> str:
    text = first_line(error)
    return text.rpartition(":")[2].strip() or text
