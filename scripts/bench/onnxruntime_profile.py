"""The operators that ONNX Runtime runs for a model, in their order, with the sizes of what they write."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from liveness import Execution, Step

from autotune.options import Constant
from autotune.tvm_backend.export.runners import constant_inputs
from autotune.tvm_backend.types import GraphProto, NodeProto

Event = Mapping[str, Any]
Feed = Mapping[str, npt.NDArray[Any]]

_KERNEL = "_kernel_time"  # what the name of a kernel's event ends with
_ERRORS_ONLY = 3  # not the warning that a graph in blocked layouts is for this machine
_TYPES = {"float": "float32", "double": "float64", "bfloat16": "uint16"}
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class Unmatched(Exception):
    """The profile and the optimised graph of a model do not say the same."""


@dataclass(frozen=True)
class Profile:
    """A run of a model.

    Attributes:
        execution: What ran.
        requested: The most bytes that the allocator had handed out at the end of a kernel, without what it had handed
            out before the first, and with the inputs.
    """

    execution: Execution
    requested: int


def profile(model: Path, arrays: Feed, values: Mapping[str, Constant], threads: int) -> Profile:
    """Run a model for the first time as ONNX Runtime does it by default.

    Args:
        model: The file.
        arrays: The inputs by name, without the constant ones.
        values: The constant inputs by name.
        threads: How many threads an operator uses.

    Raises:
        Unmatched: The events of the profile are not the operators of the optimised graph.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _ERRORS_ONLY
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        options.optimized_model_filepath = str(Path(folder, "optimised.onnx"))
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        feed = {**arrays, **constant_inputs(session, values)}
        session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
        graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    kernels = [event for event in events if event["cat"] == "Node" and event["name"].endswith(_KERNEL)]
    inputs = {name: array.nbytes for name, array in feed.items()}
    return Profile(execution(graph, kernels, inputs), _requested(kernels) + sum(inputs.values()))


def execution(graph: GraphProto, kernels: Sequence[Event], inputs: Mapping[str, int]) -> Execution:
    """Return the operators of an optimised graph, which is in the order of execution, with the sizes of a profile.

    Raises:
        Unmatched: The events are not those of the operators.
    """
    if len(kernels) != len(graph.node):
        raise Unmatched(f"{len(kernels)} kernels ran, and the optimised graph has {len(graph.node)} operators")
    return Execution(inputs, tuple(map(_step, graph.node, kernels)), frozenset(item.name for item in graph.output))


def _step(node: NodeProto, event: Event) -> Step:
    facts = event["args"]
    if facts["op_name"] != node.op_type or event["name"] != _event_name(node, facts):
        raise Unmatched(f"{event['name']} ran where the optimised graph has {node.op_type} {node.name}")
    if any(item.type in _GRAPHS for item in node.attribute):
        raise Unmatched(f"{node.op_type} {node.name} runs a graph of its own, whose kernels are not counted")
    written = [name for name in node.output if name]
    sizes = [_bytes(*item) for tensor in facts["output_type_shape"] for item in tensor.items()]
    if len(sizes) != len(written) or sum(sizes) != int(facts["output_size"]):
        raise Unmatched(f"{event['name']} wrote {facts['output_size']} bytes, not {sizes} to {', '.join(written)}")
    return Step(node.op_type, tuple(node.input), dict(zip(written, sizes, strict=True)))


def _event_name(node: NodeProto, facts: Mapping[str, Any]) -> str:
    return (node.name or f"{node.op_type}_{facts['node_index']}") + _KERNEL


def _bytes(kind: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(_TYPES.get(kind, kind)).itemsize


def _requested(kernels: Sequence[Event]) -> int:
    first = kernels[0]["args"]
    before = int(first["mem_bytes_requested_in_use"]) - int(first["mem_requested_in_use_delta"])
    return max(int(event["args"]["mem_bytes_requested_in_use"]) for event in kernels) - before
