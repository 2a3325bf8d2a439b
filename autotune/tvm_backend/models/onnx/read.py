"""Read an ONNX file into a Relax module, with errors that say what is wrong with the file."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import load_external_data_for_model

from autotune.errors import AutotuneError, ModelError, OperatorRefused, Refusal, first_line
from autotune.options import Constant, InputSpec
from autotune.storage.formats import OpenBatch
from autotune.tvm_backend.graph.constants import drop_empty_parts
from autotune.tvm_backend.graph.joined_modules import Joiner
from autotune.tvm_backend.models.model import Model, OpenInput, constant_array, open_batches, resolve
from autotune.tvm_backend.models.onnx.checks import check_computes, check_inputs, check_kind, check_sizes
from autotune.tvm_backend.models.onnx.counted import first_counted, with_counts
from autotune.tvm_backend.models.onnx.importer import convert, import_graph
from autotune.tvm_backend.models.onnx.loop_bodies import LoopBody, with_placeholders
from autotune.tvm_backend.models.onnx.operators.inline import fold_constant_ifs
from autotune.tvm_backend.models.onnx.operators.loops import is_open
from autotune.tvm_backend.models.onnx.operators.lower import is_lowered, lower, lower_powers
from autotune.tvm_backend.models.onnx.operators.nodes import ADVICE, node_name, opset_of
from autotune.tvm_backend.models.onnx.simplify import fix_shapes, fold, is_unfinished, simplify
from autotune.tvm_backend.models.onnx.snapshot import is_large
from autotune.tvm_backend.models.onnx.widen import has_halves, widen
from autotune.tvm_backend.types import GraphProto, IRModule, ModelProto, TensorProto, ValueInfoProto

_IMAGE_RANK = 4


def read_model(
    path: Path,
    overrides: Mapping[str, InputSpec],
    proto: ModelProto | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Constant] | None = None,
    *,
    gpu: bool = False,
) -> Model:
    """Import an ONNX file.

    A graph that the importer takes is given to it as it is. One that computes shapes or has operators that the
    importer lacks is simplified and rewritten before, as is one that the importer refuses.

    Args:
        proto: The parsed file, where `parse_file` has read it already.
        overrides: Shapes (and types) that the user gave for inputs by name; an empty dtype keeps the model's.
        dims: Sizes of open dimensions by their names.
        values: Inputs that are constants, by name; the model has these inputs no more.
        gpu: Whether it is for a GPU. Float16 is computed as such then, and not in float32, and recurrent operators are
            unrolled.

    Raises:
        ModelError: The file cannot be read, is not ONNX, is empty, has an unknown dimension or an operator
            that the importer does not support; one line that says which.
    """
    with _readable(path):
        proto = freeze(path, parse_file(path) if proto is None else proto, values or {})
        check_kind(path, proto)
        check_inputs(path, proto, overrides)
        inputs = resolve_inputs(path, proto, overrides, dims)
        check_sizes(path, proto, inputs)
        batches = open_batches(_open_inputs(path, proto), overrides, dims or {})
    try:
        return _imported(path, proto, inputs, batches, frozen=bool(values), gpu=gpu)
    except ModelError as error:
        if not isinstance(error, OperatorRefused) or (error.refusal and error.refusal.given):
            check_computes(path, proto, inputs, error)
        raise


def _imported(
    path: Path,
    proto: ModelProto,
    inputs: tuple[InputSpec, ...],
    batches: tuple[OpenBatch, ...],
    *,
    frozen: bool,
    gpu: bool,
) -> Model:
    """Import a graph as it is, or rewritten. `frozen` says that some of its inputs are constants."""
    outputs = tuple(output.name for output in proto.graph.output)
    with _about(path):
        graph = widen(proto) if has_halves(proto) and not gpu else proto
        graph = graph if is_large(graph) else lower_powers(graph)
    if not frozen and not is_unfinished(graph) and is_lowered(graph, unroll=gpu):
        with contextlib.suppress(ModelError):
            return Model(_import(path, graph, inputs), inputs, outputs, None if graph is proto else graph, batches)
    with _about(path):
        rewritten, refused = _rewritten(graph, inputs, unroll=gpu)
        if gpu:
            _check_fixed(rewritten)
    try:
        return Model(_import(path, rewritten, inputs), inputs, outputs, rewritten, batches)
    except ModelError as error:
        if refused is None or isinstance(error.__cause__, NotImplementedError):
            raise
        raise ModelError(f"cannot import {path}: {refused}") from error


def _check_fixed(proto: ModelProto) -> None:
    """Refuse a graph for a GPU that has as many rows or steps as the data say: the kernels for that are for CPUs."""
    node = first_counted(proto) or next(filter(is_open, proto.graph.node), None)
    if node is not None:
        why = "on a GPU nothing may have a size or a length that depends on the data"
        advice = (
            "tune the model for the CPU"
            if is_open(node)
            else f"tune the model for the CPU, or end it at {node.input[0]!r}"
        )
        raise OperatorRefused.of(Refusal(node.op_type, node_name(node), why, advice, opset_of(proto)))


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Map what type inference and the rewrites raise at a malformed graph, which may be anything."""
    try:
        yield
    except OperatorRefused as error:
        raise error.in_file(path) from error
    except Exception as error:
        said = str(error) if isinstance(error, ModelError) else _stumbled(error)
        raise ModelError(f"cannot import {path}: {said}") from error


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Map what the checks of a graph raise at names that are no text, types that there are not, and the like."""
    try:
        yield
    except AutotuneError:
        raise
    except Exception as error:
        raise ModelError(f"cannot import {path}: {_stumbled(error)}") from error


def _stumbled(error: Exception) -> str:
    """Return the line for an exception that was not meant for users."""
    return f"it is malformed, or of a form that is not known ({type(error).__name__}: {first_line(error)}); {ADVICE}"


def read_rewritten(path: Path, inputs: tuple[InputSpec, ...]) -> Model:
    """Import a graph that `read_model` has rewritten before, exactly as it is.

    Raises:
        ModelError: As for `read_model`.
    """
    return import_rewritten(path, parse_file(path), inputs)


def import_rewritten(path: Path, proto: ModelProto, inputs: tuple[InputSpec, ...]) -> Model:
    """Import what `read_model` has rewritten before and `parse_file` has read. `path` is for errors."""
    return Model(_import(path, proto, inputs), inputs, tuple(output.name for output in proto.graph.output), proto)


def _rewritten(
    proto: ModelProto, inputs: tuple[InputSpec, ...], *, unroll: bool
) -> tuple[ModelProto, ModelError | None]:
    """The graph simplified, with operators that the importer has; what is written for others is simplified, too.

    Where ONNX Runtime cannot read the last of these graphs it stays as it is, and the error says why.
    """
    fixed = fix_shapes(proto, inputs)
    graph, refused = _simplified(convert(fixed, inputs), inputs)
    while not is_lowered(graph, unroll=unroll):
        graph, refused = _simplified(lower(graph, unroll=unroll), inputs)
    return (graph if is_large(graph) else lower_powers(graph)), refused


def _simplified(graph: ModelProto, inputs: tuple[InputSpec, ...]) -> tuple[ModelProto, ModelError | None]:
    refused = None
    try:
        graph = simplify(graph, inputs)
    except ModelError as error:
        refused = error
    return (fold(graph) if is_unfinished(graph) and not is_large(graph) else graph), refused


def parse_file(path: Path) -> ModelProto:
    """The ONNX graph in a file, with the weights that it keeps in other files.

    Raises:
        ModelError: As for `read_model`.
    """
    proto = parse_graph(path)
    load_weights(path, proto)
    return proto


def parse_graph(path: Path) -> ModelProto:
    """The ONNX graph in a file, without the weights that it keeps in other files. Errors are those of `read_model`."""
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (DecodeError, ValueError) as error:
        formats = "autotune reads ONNX, TensorFlow Lite, and what torch.export.save wrote"
        raise ModelError(f"{path} is not an ONNX file, or is cut short; {formats}") from error
    if not proto.graph.node:
        raise ModelError(f"{path} has no operators: an empty graph, or not an ONNX file")
    return proto


def weight_files(proto: ModelProto) -> list[str]:
    """The paths of the files that a graph keeps weights in, from its folder."""
    places = [dict((entry.key, entry.value) for entry in item.external_data) for item in _tensors(proto.graph)]
    return sorted({place["location"] for place in places if "location" in place})


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The constants of a graph and of the graphs in it."""
    yield from graph.initializer
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _tensors(inner)


def load_weights(path: Path, proto: ModelProto) -> None:
    """Put the weights into a graph that it keeps in other files. Errors are those of `read_model`."""
    try:
        load_external_data_for_model(proto, str(path.parent))
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:  # RuntimeError: of C++
        advice = "put the file that it names beside it, as a whole"
        raise ModelError(f"{path} keeps weights in another file: {first_line(error)}; {advice}") from error


def resolve_inputs(
    path: Path, proto: ModelProto, overrides: Mapping[str, InputSpec], dims: Mapping[str, int] | None = None
) -> tuple[InputSpec, ...]:
    """The inputs in the order of the graph, every dimension known. Arguments and errors are those of `resolve`."""
    free = _open_inputs(path, proto)
    batches = open_batches(free, overrides, dims or {})
    return resolve(path, free, overrides, dims or {}, batches, _image_sizes(proto, free))


def _image_sizes(proto: ModelProto, free: list[OpenInput]) -> dict[str, int]:
    """The height and the width of open images, as exporters of Ultralytics write them: `imgsz` is `[320, 320]`."""
    written = next((item.value for item in proto.metadata_props if item.key == "imgsz"), "")
    sizes = [int(number) for number in re.findall(r"\d+", written)]
    images = [item.dims[2:] for item in free if item.dims is not None and len(item.dims) == _IMAGE_RANK]
    if not sizes or len(images) != 1:
        return {}
    named = zip(images[0], (sizes[0], sizes[-1]), strict=True)
    return {dim: size for dim, size in named if isinstance(dim, str) and dim and size}


def open_dims(path: Path) -> dict[str, tuple[str, ...]]:
    """The names of the open dimensions of each input; an empty one for a dimension without. Errors: `read_model`."""
    inputs = _open_inputs(path, parse_graph(path))
    return {item.name: tuple("" if isinstance(dim, int) else dim for dim in item.dims or ()) for item in inputs}


def _open_inputs(path: Path, proto: ModelProto) -> list[OpenInput]:
    constants = {item.name for item in proto.graph.initializer}
    return [_open_input(path, item) for item in proto.graph.input if item.name not in constants]


def _open_input(path: Path, item: ValueInfoProto) -> OpenInput:
    if not item.type.HasField("tensor_type"):
        raise ModelError(f"{path}: input {item.name!r} is not a tensor, but a sequence or an optional value; {ADVICE}")
    tensor = item.type.tensor_type
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except KeyError:
        raise ModelError(f"{path}: input {item.name!r} has no known type ({tensor.elem_type})") from None
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"{path}: input {item.name!r} is text, and kernels compute numbers; {ADVICE}")
    if not tensor.HasField("shape"):
        return OpenInput(item.name, dtype, None)
    dims = tuple(dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in tensor.shape.dim)
    return OpenInput(item.name, dtype, dims)


def freeze(path: Path, proto: ModelProto, values: Mapping[str, Constant]) -> ModelProto:
    """A graph in which these inputs are constants, and branches that they decide are taken.

    Raises:
        ModelError: There is no such input, or it has another number of elements.
    """
    if not values:
        return proto
    frozen = onnx.ModelProto()
    frozen.CopyFrom(proto)
    inputs = {item.name: item for item in frozen.graph.input}
    for name, value in values.items():
        if name not in inputs:
            raise ModelError(f"{path} has no input {name!r}; its inputs: {', '.join(inputs)}")
        frozen.graph.initializer.append(onnx.numpy_helper.from_array(_constant(path, inputs[name], value), name))
        frozen.graph.input.remove(inputs[name])
    frozen.ir_version = max(frozen.ir_version, 4)
    fold_constant_ifs(frozen)
    return frozen


def _constant(path: Path, item: ValueInfoProto, value: Constant) -> npt.NDArray[np.generic]:
    """A value as an input of a graph wants it: in its type and shape."""
    tensor = item.type.tensor_type
    dims = tensor.shape.dim
    if isinstance(value, list):
        if len(dims) != 1 or (dims[0].HasField("dim_value") and dims[0].dim_value != len(value)):
            raise ModelError(f"{path}: input {item.name!r} does not take a list of {len(value)} numbers")
    elif any(dim.dim_value > 1 for dim in dims):
        raise ModelError(f"{path}: input {item.name!r} has more than one element, and --value gives one number")
    return constant_array(value, len(dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _import(path: Path, proto: ModelProto, inputs: tuple[InputSpec, ...]) -> IRModule:
    shapes = {item.name: list(item.shape) for item in inputs}
    dtypes = {item.name: item.dtype for item in inputs}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph, bodies = with_placeholders(with_counts(proto), proto)
            module = drop_empty_parts(import_graph(graph, shapes, dtypes))
    except OperatorRefused as error:
        raise error.in_file(path) from error.__cause__
    except ModelError as error:
        raise ModelError(f"cannot import {path}: {error}") from error.__cause__
    except Exception as error:  # the importer raises whatever its converters stumble over
        reason = _dangling(proto, error) or _stumbled(error)
        raise ModelError(f"cannot import {path}: {reason}") from error
    return _with_bodies(path, module, bodies) if bodies else module


def _with_bodies(path: Path, module: IRModule, bodies: Mapping[str, LoopBody]) -> IRModule:
    """A module with the bodies of its loops, which are imported as models are that have to be rewritten."""
    joiner = Joiner()
    joiner.add("main", module)
    for name, body in bodies.items():
        with _about(path):
            rewritten, _ = _rewritten(body.graph, body.inputs, unroll=False)
        imported = _import(path, rewritten, body.inputs)
        with _about(path):
            body.check(imported["main"].ret_ty)
        joiner.add(name, imported)
    return joiner.module()


def _dangling(proto: ModelProto, error: Exception) -> str:
    """The line for an operator that reads what is not there, which the importer reports as a key it lacks."""
    name = error.args[0] if isinstance(error, KeyError) and error.args else None
    readers = [node.op_type for node in proto.graph.node if name in node.input]
    advice = "export the model again"
    return f"{readers[0]} reads {name!r}, which nothing before it makes; {advice}" if readers else ""
