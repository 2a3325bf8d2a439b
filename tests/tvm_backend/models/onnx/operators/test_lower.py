"""Operators that the importer lacks, or gets wrong, become others that compute the same: on ONNX's own test data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.operators.lower import RULES, UNROLLED, is_lowered, lower, lower_powers
from autotune.tvm_backend.models.onnx.read import freeze
from autotune.tvm_backend.models.onnx.simplify import fix_shapes

from ..onnx_cases import onnx_cases


def run(proto, values):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((item.name for item in session.get_inputs()), values, strict=True)))


def cases(kind):
    every = onnx_cases().values()
    return [case for case in every if [node.op_type for node in case.model.graph.node] == [kind]]


DEFINED = ["Attention", "Celu", "CenterCropPad", "HannWindow", "LayerNormalization", "NegativeLogLikelihoodLoss"]


CONSTANT = ["axis", "depth", "dft_length", "frame_length", "frame_step"]  # inputs that a rule wants to know


def array(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


ELSEWHERE = {"DynamicQuantizeLSTM", "LinearRegressor", "Loop", "Scaler", "Scan", "SimplifiedLayerNormalization"}


@pytest.mark.parametrize("kind", sorted({*RULES, *UNROLLED, *DEFINED} - ELSEWHERE))
def test_a_lowered_operator_computes_what_onnx_expects(kind):
    examples = cases(kind)
    assert examples
    for case in examples:
        values, expected = ([array(value) for value in part] for part in case.data_sets[0])
        names = [item.name for item in case.model.graph.input]
        given = dict(zip(names, values, strict=True))
        constants = {name: given.pop(name).item() for name in CONSTANT if name in given}
        inputs = [InputSpec(name, value.shape, "") for name, value in given.items()]
        lowered = lower(fix_shapes(freeze(Path("model.onnx"), case.model, constants), inputs), unroll=True)
        assert is_lowered(lowered, unroll=True), case.name
        outputs = ReferenceEvaluator(lowered).run(None, given)
        for output, truth in zip(outputs, expected, strict=True):
            assert output.dtype == truth.dtype and output.shape == truth.shape, case.name
            atol = max(case.atol, 1e-6)  # what is expected is rounded, too
            np.testing.assert_allclose(output, truth, rtol=case.rtol, atol=atol, err_msg=case.name)


def test_what_a_rule_writes_may_have_a_rule():
    """SwiGLU is defined by Swish, which is defined by others."""
    (case,) = [case for case in cases("SwiGLU") if case.name == "test_swiglu"]
    lowered = lower(case.model)
    assert not is_lowered(lowered)
    names = [name for node in lower(lowered).graph.node for name in node.output]
    assert len(set(names)) == len(names)


def recurrent(kind, x, hidden, **attributes):
    """A model of one operator with random weights, on inputs of shape [steps, batch, features]."""
    rng = np.random.default_rng(5)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    weights = {
        "W": (directions, gates * hidden, x.shape[2]),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
    }
    constants = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name) for name, size in weights.items()
    ]
    states = ["Y_h", "Y_c"] if kind == "LSTM" else ["Y_h"]
    node = helper.make_node(kind, ["x", *weights], ["Y", *states], hidden_size=hidden, **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Y", *states)]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("direction", "steps"), [("forward", 1), ("reverse", 5), ("bidirectional", 5)])
def test_a_recurrent_network_in_each_direction_and_of_any_length(kind, direction, steps):
    x = np.random.default_rng(3).standard_normal((steps, 2, 3)).astype(np.float32)
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    model = recurrent(kind, x, 4, direction=direction, **options)
    for output, truth in zip(run(lower(model, unroll=True), [x]), run(model, [x]), strict=True):
        np.testing.assert_allclose(output, truth, rtol=1e-4, atol=1e-5)


def test_a_recurrent_layer_over_too_many_steps_is_refused():
    model = recurrent("LSTM", np.zeros((5000, 1, 3), np.float32), 4)
    with pytest.raises(ModelError, match="LSTM over 5000 steps; at most 1024"):
        lower(model, unroll=True)


def test_a_recurrent_layer_stays_as_it_is_for_a_target_with_kernels_for_it():
    model = recurrent("LSTM", np.zeros((5, 1, 3), np.float32), 4)
    assert is_lowered(model)
    assert not is_lowered(model, unroll=True)
    assert [node.op_type for node in lower(model).graph.node] == ["LSTM"]


def test_a_recurrent_layer_of_unknown_length_is_refused():
    model = recurrent("LSTM", np.zeros((5, 1, 3), np.float32), 4)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"
    with pytest.raises(ModelError, match="the shape of 'x' is not known"):
        lower(model, unroll=True)


def enlarged(**attributes):
    """A model of one transposed convolution of a 5x6 image, with a 3x2 kernel and strides of 2."""
    weight = numpy_helper.from_array(np.random.default_rng(2).standard_normal((2, 3, 3, 2)).astype(np.float32), "w")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 6])
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "attributes",
    [
        {"output_shape": [10, 11]},
        {"output_shape": [10, 11], "auto_pad": "SAME_UPPER"},
        {"output_shape": [10, 11], "auto_pad": "SAME_LOWER"},
        {"output_shape": [12, 12], "output_padding": [1, 1], "dilations": [2, 1]},
        {"output_shape": [12, 13]},
    ],
)
def test_a_transposed_convolution_that_names_the_size_of_its_output(attributes):
    x = np.random.default_rng(3).standard_normal((1, 2, 5, 6)).astype(np.float32)
    model = enlarged(**attributes)
    lowered = lower(model)
    assert is_lowered(lowered) and not is_lowered(model)
    (output,) = run(lowered, [x])
    (truth,) = run(model, [x])
    assert output.shape == truth.shape
    np.testing.assert_allclose(output, truth, rtol=1e-5, atol=1e-6)


def test_a_transposed_convolution_that_is_larger_than_its_windows_is_refused():
    with pytest.raises(ModelError, match="ConvTranspose.*an output of 40 is larger"):
        lower(enlarged(output_shape=[40, 12]))


def test_what_has_no_rule_stays_as_it_is():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    assert is_lowered(model)
    assert [node.op_type for node in lower(model).graph.node] == ["Relu"]


def branch(name, nodes, output, constants=()):
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, [2])
    return helper.make_graph(nodes, name, [], [value], constants)


def choice(then, other):
    """A model that takes `then` where its input `c` is true and `other` where it is not, of an input `x`."""
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scaled(name, factor):
    """A branch that multiplies; both branches give their values the same names, as exporters do."""
    constant = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    return branch(name, [helper.make_node("Mul", ["x", "factor"], ["result"])], "result", [constant])


@pytest.mark.parametrize(("condition", "factor"), [(True, 3), (False, 7)])
def test_of_two_branches_the_result_of_one_is_taken(condition, factor):
    lowered = lower(choice(scaled("then", 3), scaled("else", 7)))
    assert is_lowered(lowered)
    (result,) = run(lowered, [np.array(condition), np.array([1, 2], np.float32)])
    assert result.tolist() == [factor, 2 * factor]


@pytest.mark.parametrize(("condition", "result"), [(True, [5, 10]), (False, [7, 14])])
def test_a_branch_inside_a_branch(condition, result):
    inner = helper.make_node("If", ["c"], ["inner"], then_branch=scaled("a", 5), else_branch=scaled("b", 9))
    lowered = lower(choice(branch("then", [inner], "inner"), scaled("else", 7)))
    assert is_lowered(lowered)
    (output,) = run(lowered, [np.array(condition), np.array([1, 2], np.float32)])
    assert output.tolist() == result


def test_branches_with_results_of_other_shapes_are_refused():
    """The result of the shorter one would be broadcast to the shape of the other."""
    twice = branch("else", [helper.make_node("Concat", ["rows", "rows"], ["two"], axis=0)], "two")
    twice.node.insert(0, helper.make_node("Unsqueeze", ["x", "first"], ["rows"]))
    twice.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    twice.output[0].type.tensor_type.ClearField("shape")
    model = choice(scaled("then", 3), twice)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="If 'y': its branches give 2 and 2x2; .*--value"):
        lower(model)


def test_the_graph_that_was_given_stays_as_it_was():
    model = choice(scaled("then", 3), scaled("else", 7))
    before = onnx.ModelProto()
    before.CopyFrom(model)
    lower(model)
    assert model == before


def powers(base, exponent, constant):
    """A model of one power; the exponent is an input or a constant."""
    inputs = [helper.make_tensor_value_info(name, kind, [4]) for name, kind in (("x", base), ("y", exponent))]
    held = [helper.make_tensor("y", exponent, [4], [2, 3, 2, 1])] if constant else []
    result = [helper.make_tensor_value_info("z", base, [4])]
    graph = helper.make_graph([helper.make_node("Pow", ["x", "y"], ["z"])], "g", inputs[: 2 - constant], result, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FLOAT = TensorProto.FLOAT
DOUBLE = TensorProto.DOUBLE
INT32 = TensorProto.INT32
INT64 = TensorProto.INT64


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (FLOAT, INT32),
        (FLOAT, INT64),
        (FLOAT, DOUBLE),
        (DOUBLE, FLOAT),
        (INT32, FLOAT),
        (INT32, INT64),
        (INT64, INT32),
        (INT64, INT64),
    ],
)
def test_a_power_of_integers_or_mixed_types_becomes_one_of_floats_of_one_type(base, exponent, constant):
    model = powers(base, exponent, constant)
    lowered = lower_powers(model)
    types = {
        item.name: item.type.tensor_type.elem_type
        for item in onnx.shape_inference.infer_shapes(lowered).graph.value_info
    }
    types |= {"x": base, "y": exponent}
    (node,) = [node for node in lowered.graph.node if node.op_type == "Pow"]
    assert {types[name] for name in node.input} in ({FLOAT}, {DOUBLE})
    values = [
        np.array(numbers, helper.tensor_dtype_to_np_dtype(kind))
        for numbers, kind in zip(([1, 2, -3, 4], [2, 0.5, 3, 1]), (base, exponent), strict=True)
    ][: 2 - constant]
    (output,) = run(lowered, values)
    (truth,) = run(model, values)
    assert output.dtype == truth.dtype
    np.testing.assert_allclose(output, truth, rtol=1e-6)


def test_the_type_of_what_an_operator_of_onnx_runtime_computes_is_asked_of_it():
    x, y, z = (
        helper.make_tensor_value_info(name, kind, [4])
        for name, kind in zip("xyz", (TensorProto.FLOAT16, FLOAT, TensorProto.FLOAT16), strict=True)
    )
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("Pow", ["g", "y"], ["z"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x, y], [z]), opset_imports=opsets, ir_version=8)
    values = [np.array([1, 2, 3, 4], np.float16), np.array([2, 0.5, 3, 1], np.float32)]
    (output,) = run(lower_powers(model), values)
    (truth,) = run(model, values)
    assert output.dtype == truth.dtype == np.float16
    np.testing.assert_allclose(output, truth, rtol=2e-3)


def test_a_graph_with_powers_of_floats_stays_as_it_is():
    model = powers(FLOAT, FLOAT, False)
    assert lower_powers(model) is model


@pytest.mark.parametrize("offsets", [[], [0.5, -1.0]])
def test_a_linear_regressor_is_a_product(offsets):
    numbers = {"coefficients": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], **({"intercepts": offsets} if offsets else {})}
    node = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", targets=2, **numbers)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 2])
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=versions, ir_version=8)
    lowered = lower(proto)
    assert is_lowered(lowered)
    given = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
    (output,) = ReferenceEvaluator(lowered).run(None, given)
    right = given["x"] @ np.float32([[1, 4], [2, 5], [3, 6]]) + np.float32(offsets or [0, 0])
    np.testing.assert_allclose(output, right, rtol=1e-6)
