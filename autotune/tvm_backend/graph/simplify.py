"""Give the inputs of an ONNX graph fixed shapes, and fold what is constant then.

ONNX Runtime's basic optimisations do the folding: they use standard operators only, and do the same every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import ModelError, one_line
from autotune.storage.formats import InputSpec
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.graph.snapshot import is_large

# What exporters write where a shape is open; constant, or dead, once it is not.
_COMPUTED = frozenset({"Shape", "Size", "NonZero", "If"})
_INLINE = 1024  # bytes of a weight that stays in the file when the others are kept beside it


def is_unfinished(proto: Any) -> bool:
    """Whether a graph computes shapes, or chooses branches, while it runs."""
    return any(node.op_type in _COMPUTED for node in proto.graph.node)


def simplify(proto: Any, inputs: Sequence[InputSpec]) -> Any:
    """A graph that computes the same for inputs of these shapes, with its constants folded. `proto` stays as it is.

    One with an operator that ONNX Runtime cannot run is not folded.

    Raises:
        ModelError: ONNX Runtime cannot read the graph, or the shapes do not fit it.
    """
    import onnxruntime

    fixed = fix_shapes(proto, inputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    with scratch_folder("simplify") as folder:
        result = Path(folder) / "simplified.onnx"
        options.optimized_model_filepath = str(result)
        try:
            source = _source(fixed, Path(folder), options)
            onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions have no common class but this one
            if type(error).__name__ == "NotImplemented":
                return fixed
            shapes = ", ".join(f"{item.name}={'x'.join(map(str, item.shape)) or 'scalar'}" for item in inputs)
            raise ModelError(
                f"ONNX Runtime cannot read the model with inputs of these shapes ({shapes}): {_reason(error)}"
            ) from error
        return _load(result)


def fix_shapes(proto: Any, inputs: Sequence[InputSpec]) -> Any:
    """A copy whose inputs have these shapes and whose other shapes are unknown: written ones may be out of date."""
    import onnx

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


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its operators."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(inner)


def _source(proto: Any, folder: Path, options: Any) -> Any:
    """What a session is made of: bytes, or a file with its weights beside it where they are too many for one."""
    import onnx

    if not is_large(proto):
        return proto.SerializeToString()
    path, weights = folder / "fixed.onnx", "simplified.data"
    onnx.save(proto, str(path), save_as_external_data=True, location="fixed.data", size_threshold=_INLINE)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_INLINE))
    return str(path)


def _load(path: Path) -> Any:
    import onnx

    return onnx.load(str(path))


def _reason(error: Exception) -> str:
    """ONNX Runtime's message, without its own name for the kind of error."""
    text = one_line(error)
    return text.rpartition(" : ")[2].strip() or text
