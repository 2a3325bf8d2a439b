"""Give the inputs of an ONNX graph fixed shapes, and fold what is constant then.

ONNX Runtime's basic optimisations do the folding: they use standard operators only, and do the same every time. `fold`
is for what is too new for ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx.external_data_helper import set_external_data
from onnx.reference import ReferenceEvaluator

from autotune.errors import ModelError, one_line
from autotune.options import InputSpec
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes, is_large_weight, without_values
from autotune.tvm_backend.models.onnx.snapshot import INLINE, WIDTHS, is_large
from autotune.tvm_backend.types import GraphProto, ModelProto, NodeProto

Array = npt.NDArray[Any]

# What exporters write where a shape is open; constant, or dead, once it is not.
_COMPUTED = frozenset({"Compress", "If", "NonMaxSuppression", "NonZero", "Shape", "Size", "Unique"})
_OF_SHAPES = frozenset({"Shape", "Size"})
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_LARGEST = 1 << 16  # elements of a result that is kept as a constant
_ZEROS = "zeros.data"


def is_unfinished(proto: ModelProto) -> bool:
    """Whether a graph computes shapes, or chooses branches, while it runs."""
    return any(node.op_type in _COMPUTED for node in proto.graph.node)


def simplify(proto: ModelProto, inputs: Sequence[InputSpec]) -> ModelProto:
    """A graph that computes the same for inputs of these shapes, with its constants folded. `proto` stays as it is.

    One with an operator that ONNX Runtime cannot run is not folded.

    Raises:
        ModelError: ONNX Runtime cannot read the graph, or the shapes do not fit it.
    """
    fixed = fix_shapes(proto, inputs)
    with scratch_folder("simplify") as folder:
        result = Path(folder) / "simplified.onnx"
        try:
            open_session(fixed, inputs, result)
        except ModelError as error:
            if type(error.__cause__).__name__ == "NotImplemented":
                return fixed
            raise
        return onnx.load(str(result))


def open_session(
    fixed: ModelProto, inputs: Sequence[InputSpec], result: Path | None = None, *, runs: bool = True
) -> onnxruntime.InferenceSession:
    """Load a graph into ONNX Runtime, on one thread.

    Args:
        fixed: The graph, as `fix_shapes` returns it.
        inputs: Its inputs, for the error.
        result: Where the graph with its constants folded is written; None not to optimise at all.
        runs: Whether it is run or folded. Else its large weights are zeros, which nobody reads.

    Raises:
        ModelError: ONNX Runtime cannot read or run the graph, or the shapes do not fit it.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if result is None else levels.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")  # it copies weights for runs that never come
    if result is not None:
        options.optimized_model_filepath = str(result)
    with scratch_folder("session") as folder:
        try:
            source = _session_source(fixed, Path(folder), options) if runs else _with_zeros(fixed, Path(folder))
            return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions have no common class but this one
            shapes = ", ".join(f"{item.name}={'x'.join(map(str, item.shape)) or 'scalar'}" for item in inputs)
            raise ModelError(
                f"ONNX Runtime cannot read the model with inputs of these shapes ({shapes}): {reason(error)};"
                " an export is verified against it: see docs/guides/models.md"
            ) from error


def fix_shapes(proto: ModelProto, inputs: Sequence[InputSpec]) -> ModelProto:
    """A copy whose inputs have these shapes and whose other shapes are unknown: written ones may be out of date."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    shapes = {item.name: item.shape for item in inputs}
    free = [item for item in fixed.graph.input if item.name in shapes]
    del fixed.graph.input[:]  # files before IR version 4 list their weights, too, as if somebody might give others
    fixed.graph.input.extend(free)
    fixed.ir_version = max(fixed.ir_version, 4)
    for item in fixed.graph.input:
        item.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
        for size in shapes[item.name]:
            item.type.tensor_type.shape.dim.add(dim_value=size)
    for graph in graphs(fixed.graph):
        del graph.value_info[:]
        for item in graph.output:
            if item.type.HasField("tensor_type") and item.type.tensor_type.HasField("shape"):
                item.type.tensor_type.ClearField("shape")
    return fixed


def open_sizes(proto: ModelProto, asked: Sequence[Sequence[InputSpec]]) -> ModelProto:
    """A graph whose inputs are open where other sizes are asked for than it fixes; `proto` itself if none are.

    Args:
        asked: Its inputs, for each set of shapes.
    """
    fixed = {item.name: item.type.tensor_type.shape for item in proto.graph.input}
    other = {item.name for inputs in asked for item in inputs if not _fits(fixed[item.name], item.shape)}
    if not other:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    for item in copy.graph.output:
        item.type.tensor_type.ClearField("shape")
    for item in copy.graph.input:
        if item.name in other:
            item.type.tensor_type.ClearField("shape")
    return copy


def _fits(shape: onnx.TensorShapeProto, asked: Sequence[int]) -> bool:
    """Whether sizes are those of a shape, where it has any."""
    if not shape.dim:
        return True
    sizes = zip(shape.dim, asked, strict=False)
    return len(shape.dim) == len(asked) and all(dim.dim_value in (0, size) for dim, size in sizes)


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those inside its operators."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(inner)


def names_read(node: NodeProto) -> Iterator[str]:
    """The names of what an operator reads, and of what the graphs in it read."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from (name for graph in graphs(inner) for item in graph.node for name in item.input)


def nodes_of(proto: ModelProto) -> Iterator[NodeProto]:
    """The operators of a model, those inside others included."""
    return (node for graph in graphs(proto.graph) for node in graph.node)


def _session_source(proto: ModelProto, folder: Path, options: onnxruntime.SessionOptions) -> bytes | str:
    """What a session is made of: bytes, or a file with its weights beside it where they are too many for one."""
    if not is_large(proto):
        return bytes(proto.SerializeToString())
    path = folder / "fixed.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="fixed.data", size_threshold=INLINE)
    if not options.optimized_model_filepath:
        return str(path)
    entry = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{entry}_file_name", "simplified.data")
    options.add_session_config_entry(f"{entry}_min_size_in_bytes", str(INLINE))
    return str(path)


def _with_zeros(proto: ModelProto, folder: Path) -> str:
    """Write a graph whose large weights are parts of one file of zeros, which takes no room, and return its path."""
    light = without_values(proto)
    sizes = [0]
    for ours, given in zip(light.graph.initializer, proto.graph.initializer, strict=True):
        if is_large_weight(given) and given.data_type in WIDTHS:
            sizes.append(math.prod(given.dims) * WIDTHS[given.data_type])
            ours.raw_data = b""
            set_external_data(ours, _ZEROS, 0, sizes[-1])
            ours.ClearField("raw_data")
        else:
            ours.CopyFrom(given)
    with (folder / _ZEROS).open("wb") as file:
        file.truncate(max(sizes))
    path = folder / "light.onnx"
    path.write_bytes(light.SerializeToString())
    return str(path)


def reason(error: Exception) -> str:
    """Return ONNX Runtime's message, without its own name for the kind of error."""
    text = one_line(error)
    return text.rpartition(" : ")[2].strip() or text


def fold(proto: ModelProto) -> ModelProto:
    """A graph that computes the same, with each operator on constants, or on shapes alone, replaced by its result."""
    folded = onnx.ModelProto()
    folded.CopyFrom(proto)
    while _fold_once(folded):
        pass
    return folded


def _fold_once(proto: ModelProto) -> bool:
    """Fold what shape inference shows to be constant now; returns whether there was any, which may show more."""
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}
    count = len(constants)
    shapes = _known_shapes(proto)
    kept = []
    for node in proto.graph.node:
        results = _results(node, constants, shapes, proto)
        if results is None:
            kept.append(node)
            continue
        constants.update(results)
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in results.items())
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return len(constants) > count


def _known_shapes(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    graph = infer_shapes(proto)
    shapes = {}
    for item in (*graph.input, *graph.value_info, *graph.output):
        tensor = item.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[item.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


def _results(
    node: NodeProto, constants: dict[str, Array], shapes: dict[str, tuple[int, ...]], proto: ModelProto
) -> dict[str, Array] | None:
    """What an operator computes, by the name of the output, if it is the same every time and not large."""
    names = [name for name in node.input if name]
    if node.op_type in _OF_SHAPES and names[0] in shapes:
        inputs = {names[0]: np.broadcast_to(np.float32(0), shapes[names[0]])}
    elif all(name in constants for name in names) and node.op_type not in RANDOM:
        inputs = {name: constants[name] for name in names}
    else:
        return None
    if any(item.HasField("g") or item.graphs for item in node.attribute):
        return None
    try:
        versions = {item.domain: item.version for item in proto.opset_import}
        values = ReferenceEvaluator(node, opsets=versions).run(None, inputs)
    except Exception:  # the evaluator lacks operators and types, and raises whatever a malformed one makes it raise
        return None
    if any(not isinstance(value, np.ndarray | np.generic) or np.size(value) > _LARGEST for value in values):
        return None
    return {name: np.asarray(value) for name, value in zip(node.output, values, strict=True) if name}
