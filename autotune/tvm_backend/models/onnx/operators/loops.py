"""Loop and Scan of known length, unrolled: the operators of the body, once for each step. An LSTM is not unrolled.

A Loop of too many operators, or whose length the inputs decide, stays, and is marked as an open one. What the outputs
are, and when a Loop ends, is as in the ONNX operator specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from autotune.tvm_backend.models.onnx.operators.inline import known_truth, rename
from autotune.tvm_backend.models.onnx.operators.lstm_loops import lstm_loop
from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, UnknownValue, attributes_of, node_name
from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes, inferred_tensors
from autotune.tvm_backend.types import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

_MAX_OPERATORS = 4096  # of all steps together: each that cannot be fused is a kernel
_EXPORT = "export the model with a loop of fixed length"
_CONTROL = 2  # the first inputs of a Loop and of its body
_MAX_ELEMENTS = 1 << 28  # of what a loop puts out in slices
# The documentation of a Loop that is not unrolled, which ONNX Runtime keeps.
_OPEN = "autotune: not unrolled"
_COUNTED = "autotune: not unrolled, and the data say how many slices it puts out"


def loop(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write a Loop. Inputs: the number of steps and a condition, which may be left out, and the values it carries.

    Its body gets the number of the step, the condition and the carried values. It returns the condition for the next
    step, the carried values, and one slice of each further output.

    Raises:
        UnknownValue: The shape of an output is not known, as where it has a slice for each step, of any number.
        ValueError: There is no step, or too many slices.
    """
    before = len(nodes.written), len(nodes.constants)
    try:
        return _unrolled(node, nodes)
    except (_TooLong, UnknownValue) as error:
        del nodes.written[before[0] :]
        del nodes.constants[before[1] :]
        if isinstance(error, UnknownValue) and not nodes.is_last:
            raise  # its length may be known when what makes it is replaced
        try:
            return _open(node, nodes)
        except UnknownValue as unknown:
            raise (error if isinstance(error, UnknownValue) else unknown) from None


def is_open(node: NodeProto) -> bool:
    """Whether an operator is a Loop that stays."""
    return node.op_type == "Loop" and str(node.doc_string) in (_OPEN, _COUNTED)


def is_counted(node: NodeProto) -> bool:
    """Whether an operator is a Loop that stays and puts out slices, as many as the data say."""
    return node.op_type == "Loop" and str(node.doc_string) == _COUNTED


def carried_by(node: NodeProto) -> list[str]:
    """What a Loop carries from step to step, as it is given; its first outputs are that after the last step."""
    return list(node.input[_CONTROL:])


def slices_of(node: NodeProto) -> list[str]:
    """The outputs of a Loop that stays which have a slice of each step."""
    return list(node.output[len(carried_by(node)) :])


def slices_at_most(node: NodeProto, proto: ModelProto) -> list[tuple[int, ...]]:
    """The shapes of what a Loop that stays puts out in slices, with as many as it has steps at most."""
    if not (names := slices_of(node)):
        return []
    constants = {item.name: item for item in proto.graph.initializer}
    count = int(onnx.numpy_helper.to_array(constants[node.input[0]]).item())
    inferred = {item.name: item for item in infer_shapes(proto).value_info}
    shapes = [inferred[name].type.tensor_type.shape.dim[1:] for name in names]
    return [(count, *(dim.dim_value for dim in shape)) for shape in shapes]


def _open(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write a Loop as it is, but with what inference and the importer have to know of its outputs."""
    most, condition = node.input[:_CONTROL]
    carried = carried_by(node)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    (body,) = (item.g for item in copy.attribute if item.name == "body")
    for inner, outer in zip(body.input[_CONTROL:], carried, strict=True):
        inner.type.CopyFrom(onnx.helper.make_tensor_type_proto(nodes.dtype(outer), nodes.shape(outer)))
    sizes = [nodes.shape(name) for name in carried]
    slices = _shapes_of_slices(body, len(carried), nodes)
    always = _goes_on(body) and (not condition or (condition in nodes.numbers and nodes.number(condition)))
    if slices:
        if most not in nodes.numbers:
            raise UnknownValue(
                f"it puts out a slice for each step, and how many it takes at most is not known; {_EXPORT}"
            )
        count = int(nodes.number(most))
        if count * max(map(math.prod, slices)) > _MAX_ELEMENTS or count < 1:
            raise ValueError(f"it puts out {count} slices; {_EXPORT} and fewer steps, but at least one")
        sizes += [(count, *shape) for shape in slices]
    copy.doc_string = _OPEN if always or not slices else _COUNTED
    copy.output[:] = [f"{nodes.prefix}.{index}" for index in range(len(sizes))]
    nodes.written.append(copy)
    fixed = len(sizes) if always else len(carried)
    return [nodes.reshape(*pair) for pair in zip(copy.output[:fixed], sizes, strict=False)] + list(copy.output[fixed:])


def _shapes_of_slices(body: GraphProto, carried: int, nodes: Nodes) -> list[tuple[int, ...]]:
    """The shapes of what each step of a loop puts out.

    Raises:
        UnknownValue: One is not known.
    """
    names = [item.name for item in body.output[1 + carried :]]
    if not names:
        return []
    given = [item.name for item in (*body.input, *body.initializer)]
    outer = [(name, item) for name, item in nodes.values.items() if name not in given and item.dtype]
    inputs = [onnx.helper.make_tensor_value_info(name, item.dtype, item.shape) for name, item in outer]
    model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", nodes.opset)])
    model.graph.input.extend(inputs)
    shapes, _ = inferred_tensors(model)
    if unknown := [name for name in names if name not in shapes]:
        raise UnknownValue(f"the shape of {unknown[0]!r}, which each step puts out, is not known")
    return [shapes[name] for name in names]


def _goes_on(body: GraphProto) -> bool:
    """Whether the condition for the next step is always that for this one."""
    made = {node.output[0]: node for node in body.node}
    name = body.output[0].name
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    return bool(name == body.input[1].name)


class _TooLong(ValueError):
    """A loop has more operators than are unrolled."""


def _unrolled(node: NodeProto, nodes: Nodes) -> list[str]:
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
    of each further output. If it has too many operators to be unrolled, it becomes a Loop.

    Raises:
        ValueError: The number of steps is not known, there is none, or there are too many with slices of another axis.
    """
    told = _Scan.read(node, nodes)
    body = _Body(told.body, nodes)
    if told.steps == 0:
        raise ValueError(f"it has no step; {_EXPORT} above 0")
    try:
        body.check(told.steps)
    except _TooLong:
        if any(told.axes_out):
            raise
        return _scan_as_loop(told, nodes)
    carried = told.carried
    slices: list[list[str]] = []
    for step in range(told.steps):
        places = (told.steps - 1 - step if back else step for back in told.backwards)
        given = [_slice(nodes, *part) for part in zip(told.inputs, told.axes, places, strict=True)]
        results = body.write(step, [*carried, *given])
        carried = results[: len(carried)]
        slices.append(results[len(carried) :])
    columns = zip(zip(*slices, strict=True), told.axes_out, told.backwards_out, strict=True)
    return [*carried, *(_stacked(nodes, column[::-1] if back else column, axis) for column, axis, back in columns)]


@dataclass(frozen=True)
class _Scan:
    """What a Scan does: what it carries and reads, along which axes, and whether backwards."""

    body: GraphProto
    steps: int
    carried: list[str]
    inputs: list[str]
    axes: Sequence[int]
    backwards: Sequence[int]
    axes_out: Sequence[int]
    backwards_out: Sequence[int]

    @classmethod
    def read(cls, node: NodeProto, nodes: Nodes) -> _Scan:
        attributes = attributes_of(node)
        body = attributes["body"]
        count = int(attributes["num_scan_inputs"])
        carried = list(node.input[: len(node.input) - count])
        inputs = list(node.input[len(carried) :])
        outputs = len(body.output) - len(carried)
        axes = attributes.get("scan_input_axes", [0] * count)
        return cls(
            body,
            nodes.shape(inputs[0])[axes[0]],
            carried,
            inputs,
            axes,
            attributes.get("scan_input_directions", [0] * count),
            attributes.get("scan_output_axes", [0] * outputs),
            attributes.get("scan_output_directions", [0] * outputs),
        )


def _scan_as_loop(told: _Scan, nodes: Nodes) -> list[str]:
    """Write a Scan as a Loop that stays, whose body takes its slices itself."""
    make = onnx.helper.make_node
    count = len(told.carried)
    prefix = nodes.prefix
    step, condition, following, back_step = (f"{prefix}.{name}" for name in ("step", "condition", "next", "back"))
    body = onnx.GraphProto(name=told.body.name, initializer=told.body.initializer)
    body.input.append(onnx.helper.make_tensor_value_info(step, onnx.TensorProto.INT64, ()))
    body.input.append(onnx.helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, ()))
    body.input.extend(told.body.input[:count])
    body.initializer.append(onnx.numpy_helper.from_array(np.int64(told.steps - 1), f"{prefix}.last"))
    body.node.append(make("Sub", [f"{prefix}.last", step], [back_step]))
    for item, name, axis, back in zip(told.body.input[count:], told.inputs, told.axes, told.backwards, strict=True):
        body.node.append(make("Gather", [name, back_step if back else step], [item.name], axis=axis))
    body.node.extend(told.body.node)
    body.node.append(make("Identity", [condition], [following]))
    body.output.append(onnx.helper.make_tensor_value_info(following, onnx.TensorProto.BOOL, ()))
    body.output.extend(told.body.output)
    steps = nodes.constant(told.steps, np.int64)
    node = make("Loop", [steps, "", *told.carried], [""] * (len(body.output) - 1), body=body)
    results = _open(node, replace(nodes, numbers={**nodes.numbers, steps: told.steps}))
    slices = zip(results[count:], told.backwards_out, strict=True)
    return [*results[:count], *(_backwards(nodes, told.steps, item) if back else item for item, back in slices)]


def _backwards(nodes: Nodes, steps: int, slices: str) -> str:
    return nodes.op("Gather", slices, nodes.constant(np.arange(steps)[::-1], np.int64), axis=0)


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
            _TooLong: They are not.
        """
        count = len(self._operators)
        if steps * count > _MAX_OPERATORS:
            most = _MAX_OPERATORS // max(1, count)
            raise _TooLong(
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
