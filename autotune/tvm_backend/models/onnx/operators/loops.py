"""Loop and Scan of known length, unrolled: the operators of the body, once for each step. An LSTM is not unrolled.

What the outputs are, and when a Loop ends, is as in the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from autotune.tvm_backend.models.onnx.operators.inline import known_truth, rename
from autotune.tvm_backend.models.onnx.operators.lstm_loops import lstm_loop
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, UnknownValue, attributes_of, node_name
from autotune.tvm_backend.types import GraphProto, NodeProto, TensorProto, ValueInfoProto

_MAX_OPERATORS = 4096  # of all steps together: each that cannot be fused is a kernel
_EXPORT = "export the model with a loop of fixed length"


def loop(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write a Loop. Inputs: the number of steps and a condition, which may be left out, and the values it carries.

    Its body gets the number of the step, the condition and the carried values. It returns the condition for the next
    step, the carried values, and one slice of each further output.

    Raises:
        UnknownValue: The number of steps depends on the values of inputs.
        ValueError: There is none, or too many.
    """
    body = _Body(attributes_of(node)["body"], nodes)
    if (outputs := lstm_loop(node, body.graph, nodes, body.shared)) is not None:
        return outputs
    most, condition, *carried = node.input
    if most and most not in nodes.numbers:
        raise UnknownValue(f"its number of steps, {most!r}, follows from the values of inputs; {_EXPORT}")
    steps = int(nodes.number(most)) if most else None
    slices: list[list[str]] = []
    goes_on = _decided(nodes, condition) if condition else True
    while goes_on and (steps is None or len(slices) < steps):
        body.check(len(slices) + 1 if steps is None else steps)
        number, truth = body.step_and_truth(len(slices))
        following, *results = body.write(len(slices), [number, truth, *carried])
        carried = results[: len(carried)]
        slices.append(results[len(carried) :])
        goes_on = following == truth or _decided(nodes, following)
    if not slices and len(node.output) > len(carried):
        raise ValueError(f"it has no step, so that outputs are empty; {_EXPORT} above 0")
    return [*carried, *(_stacked(nodes, column, 0) for column in zip(*slices, strict=True))]


def scan(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write a Scan. Inputs: the values it carries, and what is read in slices.

    Its body gets the carried values and one slice of each of the others. It returns the carried values, and one slice
    of each further output.

    Raises:
        ValueError: The number of steps is not known, or there are none or too many.
    """
    attributes = attributes_of(node)
    body = _Body(attributes["body"], nodes)
    count = int(attributes["num_scan_inputs"])
    carried = list(node.input[: len(node.input) - count])
    read = list(node.input[len(carried) :])
    outputs = len(body.graph.output) - len(carried)
    axes = attributes.get("scan_input_axes", [0] * count)
    backwards = attributes.get("scan_input_directions", [0] * count)
    steps = nodes.shape(read[0])[axes[0]]
    if steps == 0:
        raise ValueError(f"it has no step; {_EXPORT} above 0")
    body.check(steps)
    slices: list[list[str]] = []
    for step in range(steps):
        places = (steps - 1 - step if back else step for back in backwards)
        given = [_slice(nodes, *part) for part in zip(read, axes, places, strict=True)]
        results = body.write(step, [*carried, *given])
        carried = results[: len(carried)]
        slices.append(results[len(carried) :])
    joined_axes = attributes.get("scan_output_axes", [0] * outputs)
    backwards_out = attributes.get("scan_output_directions", [0] * outputs)
    columns = zip(zip(*slices, strict=True), joined_axes, backwards_out, strict=True)
    return [*carried, *(_stacked(nodes, column[::-1] if back else column, axis) for column, axis, back in columns)]


class _Body:
    """The graph inside an operator, which is written once for each step. Its constants are written once.

    Args:
        nodes: Where it is written.

    Attributes:
        shared: What its constants are called there.
    """

    def __init__(self, graph: GraphProto, nodes: Nodes) -> None:
        self.graph = graph
        self._nodes = nodes
        self.shared = {item.name: f"{nodes.prefix}.{item.name}" for item in graph.initializer}
        for item in graph.initializer:
            constant = onnx.TensorProto()
            constant.CopyFrom(item)
            constant.name = self.shared[item.name]
            nodes.constants.append(constant)
        for node in graph.node:
            if node.op_type == "Constant":
                self.shared[node.output[0]] = f"{nodes.prefix}.{node.output[0]}"
                self._append(node, self.shared, nodes.prefix)
        self._operators = [node for node in graph.node if node.op_type != "Constant"]

    def check(self, steps: int) -> None:
        """Check that so many steps are few enough.

        Raises:
            ValueError: They are not.
        """
        count = len(self._operators)
        if steps * count > _MAX_OPERATORS:
            most = _MAX_OPERATORS // max(1, count)
            raise ValueError(
                f"it has {steps} steps of {count} operators; at most {most} such steps are unrolled: {_EXPORT} and"
                " fewer steps, or with LSTM, GRU or RNN operators in its place"
            )

    def step_and_truth(self, step: int) -> tuple[str, str]:
        """The first two inputs of a Loop's body: the number of the step, and that it goes on."""
        number, goes_on = list(self.graph.input)[:2]
        nodes = self._nodes
        return nodes.constant(_scalar_like(number, step), np.int64), nodes.constant(
            _scalar_like(goes_on, True), np.bool_
        )

    def write(self, step: int, given: Sequence[str]) -> list[str]:
        """Write the operators of a step for these inputs; returns the names of its outputs."""
        prefix = f"{self._nodes.prefix}.{step}"
        own = {name: f"{prefix}.{name}" for node in self._operators for name in node.output if name}
        inputs = dict(zip((item.name for item in self.graph.input), given, strict=True))
        names = {**self.shared, **own, **inputs}
        for node in self._operators:
            self._append(node, names, prefix)
        return [names.get(item.name, item.name) for item in self.graph.output]

    def _append(self, node: NodeProto, names: Mapping[str, str], prefix: str) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}.{node_name(node)}"
        rename(copy, names)
        self._nodes.written.append(copy)


def _decided(nodes: Nodes, condition: str) -> bool:
    """Return whether a condition holds.

    Raises:
        UnknownValue: It follows from the values of inputs.
    """
    constants = {name: _outer(nodes, name) for name in nodes.numbers} | {item.name: item for item in nodes.constants}
    opset = onnx.helper.make_operatorsetid("", nodes.opset)
    truth = known_truth(condition, nodes.written, constants, [opset])
    if truth is None:
        raise UnknownValue(f"whether it goes on follows from the values of inputs; {_EXPORT}, or fix them: --value")
    return truth


def _outer(nodes: Nodes, name: str) -> TensorProto:
    """A constant of one element that stands outside of the operator."""
    value = nodes.values[name]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.dtype)
    return onnx.numpy_helper.from_array(np.full(value.shape or (), nodes.numbers[name], dtype), name)


def _scalar_like(item: ValueInfoProto, value: int | bool) -> npt.NDArray[np.generic]:
    """A value in the shape in which a body takes it: as a scalar, or as the only element of a list."""
    return np.full((1,) * len(item.type.tensor_type.shape.dim), value)


def _slice(nodes: Nodes, x: str, axis: int, place: int) -> str:
    """A slice of `x` without that axis."""
    return nodes.op("Gather", x, nodes.constant(place, np.int64), axis=axis)


def _stacked(nodes: Nodes, slices: Sequence[str], axis: int) -> str:
    """The slices along a new axis."""
    if nodes.opset < 13:
        return nodes.concat([nodes.op("Unsqueeze", item, axes=[axis]) for item in slices], axis)
    axes = nodes.constant([axis], np.int64)
    return nodes.concat([nodes.op("Unsqueeze", item, axes) for item in slices], axis)
