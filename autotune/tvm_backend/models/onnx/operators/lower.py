"""Replace the operators of a graph that TVM's importer lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import onnx

from autotune.errors import ModelError, OperatorRefused, Refusal
from autotune.tvm_backend.models.onnx.operators import (
    attention,
    contrib,
    decoders,
    fourier,
    loops,
    recurrent,
    short_rules,
)
from autotune.tvm_backend.models.onnx.operators.inline import expand, inline_branches, is_defined_by_function
from autotune.tvm_backend.models.onnx.operators.nodes import ADVICE, Nodes, UnknownValue, Value, node_name, opset_of
from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes
from autotune.tvm_backend.models.onnx.simplify import open_session
from autotune.tvm_backend.types import GraphProto, ModelProto, NodeProto

# What takes the place of an operator: it writes others and returns the names of what they put out.
Rule = Callable[[NodeProto, Nodes], list[str]]

RULES: Mapping[str, Rule] = {
    "ArrayFeatureExtractor": short_rules.array_feature_extractor,
    "Binarizer": short_rules.binarizer,
    "DFT": fourier.dft,
    "STFT": fourier.stft,
    "Loop": loops.loop,
    "Scan": loops.scan,
    "LinearRegressor": short_rules.linear_regressor,
    "LpNormalization": short_rules.lp_normalization,
    "Scaler": short_rules.scaler,
    "SimplifiedLayerNormalization": decoders.simplified_layer_normalization,
    "OneHot": short_rules.one_hot,
    "ReverseSequence": short_rules.reverse_sequence,
    "TensorScatter": short_rules.tensor_scatter,
}

# Those of ONNX Runtime's own domain.
CONTRIB: Mapping[str, Rule] = {
    "Attention": attention.attention,
    "BiasGelu": contrib.bias_gelu,
    "DynamicQuantizeMatMul": contrib.dynamic_quantize_matmul,
    "EmbedLayerNormalization": contrib.embed_layer_normalization,
    "FastGelu": contrib.fast_gelu,
    "FusedMatMul": contrib.fused_matmul,
    "GatherBlockQuantized": decoders.gather_block_quantized,
    "Gelu": contrib.bias_gelu,
    "GroupQueryAttention": decoders.group_query_attention,
    "MatMulIntegerToFloat": contrib.matmul_integer_to_float,
    "MultiHeadAttention": attention.multi_head_attention,
    "QAttention": attention.quantised_attention,
    "QLinearAdd": contrib.qlinear_add,
    "QLinearConcat": contrib.qlinear_concat,
    "QLinearAveragePool": contrib.qlinear_pool,
    "QLinearGlobalAveragePool": contrib.qlinear_pool,
    "QLinearLeakyRelu": contrib.qlinear_activation,
    "QLinearMul": contrib.qlinear_mul,
    "QLinearSigmoid": contrib.qlinear_activation,
    "QLinearSoftmax": contrib.qlinear_softmax,
    "QuickGelu": contrib.quick_gelu,
    "RotaryEmbedding": decoders.rotary_embedding,
    "SkipLayerNormalization": contrib.skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": contrib.skip_simplified_layer_normalization,
}
RUNTIME_DOMAIN = "com.microsoft"

# Those of operators that have a kernel on CPUs.
UNROLLED: Mapping[str, Rule] = {
    "LSTM": recurrent.recurrent,
    "GRU": recurrent.recurrent,
    "RNN": recurrent.recurrent,
    "DynamicQuantizeLSTM": recurrent.dynamic_lstm,
}

_NUMBERS = (1, 6, 7, 9, 11)  # float, int32, int64, bool, double
# Element types by ONNX Runtime's names of them.
_TYPES = {
    "tensor(float)": 1,
    "tensor(uint8)": 2,
    "tensor(int8)": 3,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(bool)": 9,
    "tensor(float16)": 10,
    "tensor(double)": 11,
}
_OLDEST = 11  # opset: Slice, Clip and Round as they are written here


def is_lowered(proto: ModelProto, *, unroll: bool = False) -> bool:
    """Whether a graph has no operator that has a rule here. `unroll` is that of `lower`."""
    return not any(node.op_type == "If" or rule_of(node, unroll=unroll) for node in proto.graph.node)


def rule_of(node: NodeProto, *, unroll: bool = False) -> Rule | None:
    """What takes the place of an operator; None if it stays. `unroll` is that of `lower`."""
    if unroll and node.op_type in UNROLLED:
        return UNROLLED[node.op_type]
    if node.domain == RUNTIME_DOMAIN:
        return CONTRIB.get(node.op_type)
    if loops.is_open(node):
        return None
    if short_rules.has_output_shape(node):
        return short_rules.conv_transpose
    if short_rules.has_mask(node):
        return short_rules.dropout
    return expand if is_defined_by_function(node) else RULES.get(node.op_type)


def lower(proto: ModelProto, *, unroll: bool = False) -> ModelProto:
    """A graph that computes the same in operators that are imported, as far as there are rules.

    Args:
        unroll: Whether recurrent operators are unrolled too, since the target has no kernels for them.

    Raises:
        OperatorRefused: An operator is used in a way that its rule does not know.
    """
    lowered = _of_opset(proto)
    chosen = {name for node in lowered.graph.node if node.op_type == "If" for name in node.output}
    inline_branches(lowered.graph, "branch")
    values = _values(lowered)
    _check_branches(lowered.graph, chosen, values)
    _replace(lowered, values, partial(rule_of, unroll=unroll))
    return lowered


def lower_powers(proto: ModelProto) -> ModelProto:
    """A graph that computes the same with powers of floats of one type each; `proto` itself if it has no others."""
    if not any(node.op_type == "Pow" for node in proto.graph.node):
        return proto
    values = _values(proto)
    if not any(short_rules.is_unsupported_power(node, values) for node in proto.graph.node):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _replace(copy, values, lambda node: short_rules.power if short_rules.is_unsupported_power(node, values) else None)
    return copy


def replace(proto: ModelProto, chosen: Callable[[NodeProto], Rule | None]) -> ModelProto:
    """Return a graph in which these rules have replaced operators.

    Args:
        chosen: Returns the rule for an operator; None if it stays.

    Raises:
        OperatorRefused: An operator is used in a way that its rule does not know.
    """
    copy = _of_opset(proto)
    _replace(copy, _values(copy), chosen)
    return copy


def _replace(
    proto: ModelProto,
    values: Mapping[str, Value],
    chosen: Callable[[NodeProto], Rule | None],
    *,
    is_last: bool = False,
) -> None:
    """Replace the operators of a graph for which there is a rule.

    Args:
        values: What is known about its values.
        chosen: Returns the rule for an operator; None if it stays.
        is_last: Whether nothing more will be known.

    Raises:
        OperatorRefused: An operator is used in a way that its rule does not know.
    """
    numbers = _numbers(proto)
    opset = opset_of(proto)
    written: list[NodeProto] = []
    waiting: list[tuple[NodeProto, UnknownValue]] = []
    replaced = 0
    for node in proto.graph.node:
        rule = chosen(node)
        if rule is None:
            written.append(node)
            continue
        # No other operator has this output, also when what is written here has a rule and is replaced in turn.
        nodes = Nodes(f"{next(filter(None, node.output))}.{node.op_type}", opset, values, numbers, is_last)
        try:
            outputs = rule(node, nodes)
        except UnknownValue as error:  # which may be known when what makes it is replaced
            waiting.append((node, error))
            written.append(node)
            continue
        except ValueError as error:
            raise _refused(node, error, opset, values) from error
        replaced += 1
        written += nodes.written
        proto.graph.initializer.extend(nodes.constants)
        pairs = zip(outputs, node.output, strict=False)  # an operator's last outputs may be left out
        written += [
            onnx.helper.make_node("Identity", [new], [old], f"{nodes.prefix}.{old}")
            for new, old in pairs
            if new and old
        ]
    if waiting and not replaced and not is_last:
        _replace(proto, values, chosen, is_last=True)
        return
    if waiting and not replaced:
        raise _refused(*waiting[0], opset, values)
    del proto.graph.node[:]
    proto.graph.node.extend(written)


def _refused(node: NodeProto, error: ValueError, opset: int, values: Mapping[str, Value]) -> OperatorRefused:
    given = ", ".join(values[name].text() if name in values else "?" for name in node.input)
    return OperatorRefused.of(Refusal(node.op_type, node_name(node), str(error), ADVICE, opset, given))


def _check_branches(graph: GraphProto, chosen: Collection[str], values: Mapping[str, Value]) -> None:
    """Check that no output of a graph has the shape of the branch that is taken, which `Where` would broadcast.

    Args:
        chosen: The results of branches.

    Raises:
        ModelError: The branches that one of them is chosen from have results of other shapes.
    """
    outputs = {item.name for item in graph.output}.intersection(chosen)
    for node in graph.node:
        if node.op_type == "Where" and node.output[0] in outputs:
            shapes = [values[name].shape for name in node.input[1:] if name in values]
            if None not in shapes and len(set(shapes)) > 1:
                sizes = " and ".join("x".join(map(str, shape or ())) or "a scalar" for shape in shapes)
                advice = "fix the input that chooses one with --value"
                raise ModelError(f"operator If {node.output[0]!r}: its branches give {sizes}; {advice}")


def _of_opset(proto: ModelProto) -> ModelProto:
    """A copy of a graph, in this version of the operators if it is of an older one, or has none of ONNX's own."""
    has_own = any(item.domain in ("", "ai.onnx") for item in proto.opset_import)
    if has_own and opset_of(proto) < _OLDEST:
        try:
            return onnx.version_converter.convert_version(proto, _OLDEST)
        except RuntimeError as error:
            version = opset_of(proto)
            raise ModelError(f"its operators are of opset {version}, and cannot be converted: {error}") from error
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if not has_own:
        copy.opset_import.append(onnx.helper.make_opsetid("", _OLDEST))
    return copy


def _values(proto: ModelProto) -> dict[str, Value]:
    """What shape inference finds for the values of a graph."""
    graph = infer_shapes(proto)
    values = {item.name: Value(item.data_type, tuple(item.dims)) for item in graph.initializer}
    for item in (*graph.input, *graph.value_info, *graph.output):
        tensor = item.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        is_fixed = tensor.HasField("shape") and all(dim >= 0 for dim in dims)
        values.setdefault(item.name, Value(tensor.elem_type, tuple(dims) if is_fixed else None))
    if any(node.domain == RUNTIME_DOMAIN for node in proto.graph.node):
        return _values_of_runtime(proto) | {name: value for name, value in values.items() if value.shape is not None}
    return values


def _values_of_runtime(proto: ModelProto) -> dict[str, Value]:
    """What ONNX Runtime finds, which knows the operators of its own domain; nothing if it cannot read the graph."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    ends = {item.name for item in copy.graph.output}
    names = [name for node in copy.graph.node for name in node.output if name and name not in ends]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        session = open_session(copy, ())
    except ModelError:
        return {}
    outputs = {item.name: item for item in session.get_outputs()}
    return {name: Value(_TYPES[item.type], _fixed(item.shape)) for name, item in outputs.items() if item.type in _TYPES}


def _fixed(shape: Sequence[int | str | None]) -> tuple[int, ...] | None:
    sizes = tuple(size for size in shape if isinstance(size, int))
    return sizes if len(sizes) == len(shape) else None


def _numbers(proto: ModelProto) -> dict[str, float]:
    """The constants of one element, by name."""
    small = [item for item in proto.graph.initializer if math.prod(item.dims) == 1 and item.data_type in _NUMBERS]
    return {item.name: float(onnx.numpy_helper.to_array(item).item()) for item in small}
