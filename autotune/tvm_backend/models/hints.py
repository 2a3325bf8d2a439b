"""What the operators of a model say of its inputs and outputs: which are indices into a table, which probabilities."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.tvm_backend.models.onnx.input_values import InputValues
from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes
from autotune.tvm_backend.models.pytorch.checked import output_names
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer, Operator
from autotune.tvm_backend.types import ModelProto, NodeProto


@dataclass(frozen=True)
class Hints:
    """What a model says of its inputs and outputs.

    Attributes:
        vocabularies: For inputs with indices among their elements, the number of rows of their smallest table, by the
            name of the input.
        rows: The same for inputs all of whose elements are indices, each of them into that table.
        probabilities: For each output, whether it is the result of a sigmoid or a softmax.
        ranges: The least and the largest value of inputs for which the model says so, by the name of the input.
        sounds: The names of the inputs that are samples of a sound.
    """

    vocabularies: Mapping[str, int]
    rows: Mapping[str, int]
    probabilities: tuple[bool, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sounds: frozenset[str] = frozenset()


NO_HINTS = Hints({}, {}, ())


@dataclass(frozen=True)
class _Format:
    """The operators of a format that matter here."""

    whole: frozenset[str]  # hand on all values as they are, in another shape or type
    some: frozenset[str]  # hand on some of them
    bounded: frozenset[str]  # make numbers between 0 and 1
    keep: frozenset[str]  # leave such numbers as they are


@dataclass(frozen=True)
class _Step:
    """An operator: its name, the first value that it reads and those that it makes."""

    name: str
    source: Hashable
    results: Sequence[Hashable]


@dataclass(frozen=True)
class _Lookup:
    """A value whose elements are indices into a table; unless it is `single`, several of them are one index."""

    index: Hashable
    rows: int
    single: bool = True


_ONNX = _Format(
    whole=frozenset(
        ["Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"]
    ),
    some=frozenset({"Gather", "Slice", "Split"}),
    bounded=frozenset({"Sigmoid", "HardSigmoid", "Softmax"}),
    keep=frozenset(["Cast", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"]),
)
_BY_INDEX = frozenset({"Gather", "GatherElements", "ScatterElements"})
_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity", "Mul"})
_PYTORCH_MOVES = frozenset(
    {"alias", "clone", "contiguous", "detach", "detach_", "expand", "flatten", "permute", "reshape", "squeeze", "to"}
    | {"transpose", "unsqueeze", "view", "_to_copy"}
)
_PYTORCH = _Format(
    whole=_PYTORCH_MOVES,
    some=frozenset({"select", "slice"}),
    bounded=frozenset({"_softmax", "hardsigmoid", "sigmoid", "softmax"}),
    keep=_PYTORCH_MOVES | {"select", "slice"},
)
_TFLITE_MOVES = frozenset({"CAST", "EXPAND_DIMS", "RESHAPE", "SQUEEZE", "TRANSPOSE"})
_TFLITE = _Format(
    whole=_TFLITE_MOVES,
    some=frozenset({"SLICE", "STRIDED_SLICE"}),
    bounded=frozenset({"LOGISTIC", "SOFTMAX"}),
    keep=_TFLITE_MOVES | {"SLICE", "STRIDED_SLICE"},
)


def _hints(
    words: _Format,
    inputs: Mapping[Any, str],
    steps: Sequence[_Step],
    lookups: Sequence[_Lookup],
    outputs: Sequence[Hashable],
) -> Hints:
    """Follow indices back to the inputs that they come from, and outputs to the operators that made them.

    Args:
        words: The names of the operators.
        inputs: The names of the inputs by their values.
        lookups: Where tables are read.
        outputs: The values that are the outputs.
    """
    makers = {value: step for step in steps for value in step.results}

    def smallest(handed_on: Collection[str], chosen: Sequence[_Lookup]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for lookup in chosen:
            origin = _origin(makers, lookup.index, handed_on)
            if origin in inputs:
                name = inputs[origin]
                sizes[name] = min(lookup.rows, sizes.get(name, lookup.rows))
        return sizes

    ends = (makers.get(_origin(makers, value, words.keep)) for value in outputs)
    return Hints(
        vocabularies=smallest(words.whole | words.some, lookups),
        rows=smallest(words.whole, [lookup for lookup in lookups if lookup.single]),
        probabilities=tuple(step is not None and step.name in words.bounded for step in ends),
    )


def _origin(makers: Mapping[Any, _Step], value: Hashable, handed_on: Collection[str]) -> Hashable:
    """The value that operators of these names have handed on."""
    while value in makers and makers[value].name in handed_on:
        value = makers[value].source
    return value


def onnx_hints(proto: ModelProto) -> Hints:
    """Return what an ONNX graph says."""
    graph = proto.graph
    inputs = {item.name for item in graph.input} - {item.name for item in graph.initializer}
    steps = [_Step(node.op_type, next(iter(node.input), None), node.output) for node in graph.node]
    outputs = [item.name for item in graph.output]
    hints = _hints(_ONNX, {name: name for name in inputs}, steps, list(_onnx_lookups(proto)), outputs)
    values = InputValues(proto)
    return replace(hints, ranges=values.ranges, sounds=values.sounds)


def _onnx_lookups(proto: ModelProto) -> Iterator[_Lookup]:
    sizes = {item.name: tuple(item.dims) for item in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            sizes.update((node.output[0], tuple(item.t.dims)) for item in node.attribute if item.HasField("t"))
    if any(node.op_type in _BY_INDEX and not sizes.keys() & set(node.input[:2]) for node in proto.graph.node):
        sizes = _inferred(proto) | sizes
    for node in proto.graph.node:
        table = sizes.get(node.input[0]) if node.input else None
        if table is not None and node.op_type in _SAME_SHAPE:
            for name in node.output:
                sizes.setdefault(name, table)
        elif table and node.op_type in _BY_INDEX:
            yield _Lookup(node.input[1], table[_onnx_axis(node) % len(table)])
        elif table and node.op_type == "GatherND":
            yield _Lookup(node.input[1], min(table), single=False)


def _inferred(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes that inference finds, of which all sizes are known; none where it stumbles."""
    try:
        graph = infer_shapes(proto, data_prop=False)
    except Exception:  # whatever a large or malformed graph makes it raise
        return {}
    shapes = {item.name: item.type.tensor_type.shape.dim for item in (*graph.input, *graph.value_info)}
    sizes = {name: tuple(int(dim.dim_value) for dim in dims) for name, dims in shapes.items()}
    return {name: shape for name, shape in sizes.items() if shape and min(shape) > 0}


def _onnx_axis(node: NodeProto) -> int:
    return next((int(item.i) for item in node.attribute if item.name == "axis"), 0)


def pytorch_hints(program: Mapping[str, Any]) -> Hints:
    """Return what an exported program says."""
    graph = program["graph_module"]["graph"]
    signature = program["graph_module"]["signature"]
    given = [spec["user_input"] for spec in signature["input_specs"] if "user_input" in spec]
    names = [item["arg"]["as_tensor"]["name"] for item in given]
    steps = [_pytorch_step(node) for node in graph["nodes"]]
    lookups = []
    for node, step in zip(graph["nodes"], steps, strict=True):
        if step.name == "embedding":
            table, index = (item["arg"]["as_tensor"]["name"] for item in node["inputs"][:2])
            lookups.append(_Lookup(index, int(graph["tensor_values"][table]["sizes"][0]["as_int"])))
    return _hints(_PYTORCH, {name: name for name in names}, steps, lookups, output_names(program))


def _pytorch_step(node: Mapping[str, Any]) -> _Step:
    name = str(node["target"]).removeprefix("torch.ops.aten.").partition(".")[0]
    arguments = [item["arg"].get("as_tensor", {}).get("name") for item in node["inputs"]]
    results = [item["as_tensor"]["name"] for item in node["outputs"] if "as_tensor" in item]
    return _Step(name, next(iter(arguments), None), results)


def tflite_hints(flatbuffer: Flatbuffer) -> Hints:
    """Return what a model of TensorFlow Lite says."""
    operators = flatbuffer.operators()
    made = {number for operator in operators for number in operator.outputs}
    read = {number for operator in operators for number in operator.inputs}
    steps = [_Step(operator.name, next(iter(operator.inputs), None), operator.outputs) for operator in operators]
    lookups = []
    for operator in operators:
        if operator.name in ("GATHER", "EMBEDDING_LOOKUP"):
            table, index = operator.inputs if operator.name == "GATHER" else reversed(operator.inputs)
            shape = flatbuffer.shape(table)
            if flatbuffer.is_constant(table) and shape:
                lookups.append(_Lookup(index, shape[_tflite_axis(operator) % len(shape)]))
    inputs = {number: flatbuffer.name(number) for number in read - made}
    return _hints(_TFLITE, inputs, steps, lookups, flatbuffer.outputs())


def _tflite_axis(operator: Operator) -> int:
    import tflite

    table = operator.entry.BuiltinOptions()
    if operator.name != "GATHER" or table is None:
        return 0
    options = tflite.GatherOptions()
    options.Init(table.Bytes, table.Pos)
    return int(options.Axis())
