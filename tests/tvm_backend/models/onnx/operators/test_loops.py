"""Loops of known length are unrolled to what ONNX Runtime computes of them; others are refused with a next step."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.errors import ModelError
from autotune.tvm_backend.models.onnx.operators.lower import is_lowered, lower
from autotune.tvm_backend.models.onnx.read import read_model

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((3, 3)).astype(np.float32)


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(node, outputs, constants=(), before=()):
    inputs = [value("x", FLOAT, [5, 1, 3])]
    graph = helper.make_graph([*before, node], "g", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def computed(proto):
    """What the unrolled graph computes, and what ONNX Runtime computes of `proto`."""
    x = RANDOM.standard_normal((5, 1, 3)).astype(np.float32)
    lowered = lower(proto)
    while not is_lowered(lowered):
        lowered = lower(lowered)
    assert not {node.op_type for node in lowered.graph.node} & {"Loop", "Scan", "If"}
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return ReferenceEvaluator(lowered).run(None, {"x": x}), session.run(None, {"x": x})


def same(proto):
    ours, theirs = computed(proto)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    return ours


def cell(condition="c", more=(), last="go"):
    """The body of a Loop: h = tanh(h @ w + x[i]), with a weight of its own and one from outside."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["xi"], axis=0),
        helper.make_node("MatMul", ["h", "w"], ["hw"]),
        helper.make_node("Mul", ["hw", "half"], ["scaled"]),
        helper.make_node("Add", ["scaled", "xi"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
        *more,
        helper.make_node("Identity", [condition], [last]),
    ]
    inputs = [value("i", INT64, []), value("c", BOOL, []), value("h", FLOAT, [1, 3])]
    outputs = [value(last, BOOL, []), value("next", FLOAT, [1, 3]), value("sum", FLOAT, [1, 3])]
    return helper.make_graph(nodes, "body", inputs, outputs, [constant("half", 0.5)])


STATE = [constant("w", W), constant("start", np.zeros((1, 3)))]
ENDS = [value("y", FLOAT, None), value("all", FLOAT, None)]


def loop(most, condition, body=None):
    return helper.make_node("Loop", [most, condition, "start"], ["y", "all"], "steps", body=body or cell())


def test_a_loop_of_constant_length_is_its_body_so_often():
    proto = model(loop("m", ""), ENDS, [*STATE, constant("m", 4, np.int64)])
    assert [item.shape for item in same(proto)] == [(1, 3), (4, 1, 3)]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_loop_ends_with_a_condition_that_follows_from_constants(shape):
    less = helper.make_node("Less", ["i", "two"], ["small"])
    body = cell("small", [less])
    constants = [*STATE, constant("two", 2, np.int64), constant("m", np.full(shape, 9), np.int64)]
    proto = model(loop("m", "true", body), ENDS, [*constants, constant("true", True, np.bool_)])
    assert same(proto)[1].shape == (3, 1, 3), "the condition is that of the next step"


def test_a_loop_in_a_loop_and_a_branch_in_it_are_unrolled():
    then, other = (
        helper.make_graph([helper.make_node(kind, ["next"], ["r"])], kind, [], [value("r", FLOAT, None)])
        for kind in ("Neg", "Abs")
    )
    branch = helper.make_node("If", ["even"], ["next2"], then_branch=then, else_branch=other)
    more = [
        helper.make_node("Mod", ["i", "two"], ["odd"]),
        helper.make_node("Equal", ["odd", "zero"], ["even"]),
        branch,
        helper.make_node("Loop", ["two", "", "next2"], ["inner"], body=_double()),
    ]
    body = cell(more=more)
    body.output[1].name = "inner"
    constants = [*STATE, constant("m", 3, np.int64), constant("two", 2, np.int64), constant("zero", 0, np.int64)]
    same(model(loop("m", "", body), ENDS, constants))


def _double():
    nodes = [helper.make_node("Add", ["v", "v"], ["v2"]), helper.make_node("Identity", ["k"], ["k2"])]
    inputs = [value("j", INT64, []), value("k", BOOL, []), value("v", FLOAT, None)]
    return helper.make_graph(nodes, "double", inputs, [value("k2", BOOL, []), value("v2", FLOAT, None)])


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({}, (5, 1, 3)),
        ({"scan_input_directions": [1], "scan_output_directions": [1]}, (5, 1, 3)),
        ({"scan_input_axes": [2], "scan_output_axes": [1]}, (1, 3, 3)),
    ],
)
def test_a_scan_reads_and_writes_slices(attributes, shape):
    wide = "scan_input_axes" in attributes
    size = [5, 1] if wide else [1, 3]
    nodes = [helper.make_node("Sub", ["xi", "h"], ["next"]), helper.make_node("Neg", ["next"], ["out"])]
    inputs = [value("h", FLOAT, None), value("xi", FLOAT, size)]
    body = helper.make_graph(nodes, "body", inputs, [value("next", FLOAT, None), value("out", FLOAT, None)])
    node = helper.make_node("Scan", ["start", "x"], ["y", "all"], body=body, num_scan_inputs=1, **attributes)
    outputs = same(model(node, ENDS, [constant("start", np.zeros(size))]))
    assert outputs[1].shape == ((5, 3, 1) if wide else shape)


REFUSED = [
    (loop("n", "true"), "follows from the values of inputs; export the model with a loop of fixed length"),
    (loop("none", ""), "it has no step, so that outputs are empty"),
]


@pytest.mark.parametrize(("node", "says"), REFUSED)
def test_a_loop_without_a_largest_size_is_refused_with_its_name_and_the_next_step(node, says):
    before = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["n"], to=INT64),
    ]
    constants = [*STATE, constant("none", 0, np.int64), constant("true", True, np.bool_)]
    with pytest.raises(ModelError, match=f"operator Loop 'steps' .*{says}"):
        lower(model(node, ENDS, constants, before))


def test_a_model_with_a_loop_is_imported_and_its_length_may_follow_from_a_shape(tmp_path):
    """The number of steps is the first dimension of the input."""
    before = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["m"], axis=0),
    ]
    proto = model(loop("m", ""), ENDS, [*STATE, constant("first", 0, np.int64)], before)
    path = tmp_path / "loop.onnx"
    onnx.save(proto, path)
    imported = read_model(path, {})
    assert imported.outputs == ("y", "all")
    assert len(re.findall(r"R\.tanh\(", str(imported.module))) == 5
