"""A Loop whose body is the step of an LSTM becomes that operator, others stay. ONNX Runtime says what is right."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autotune.tvm_backend.models.onnx.operators.lower import is_lowered, lower
from autotune.tvm_backend.models.onnx.read import read_model

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL
STEPS = 6
BATCH = 2
FEATURES = 3
HIDDEN = 4
RANDOM = np.random.default_rng(3)
GATES = {"i": "Sigmoid", "f": "Sigmoid", "g": "Tanh", "o": "Sigmoid"}

# What is written to the outputs where a step is left out.
FILLS = ["zeros", "h", "p"]


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name, array, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def op(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), output.split(), **attributes)


def chosen(new, old, output, *, where):
    """Operators that take the new value where the mask says so, in either of two forms."""
    if where:
        return [op("Where", f"m {new} {old}", output)]
    masks = [op("Cast", "m", f"{output}.1", to=FLOAT), op("Not", "m", f"{output}.2")]
    masks += [op("Cast", f"{output}.2", f"{output}.3", to=FLOAT)]
    terms = [op("Mul", f"{output}.1 {new}", f"{output}.4"), op("Mul", f"{old} {output}.3", f"{output}.5")]
    return [*masks, *terms, op("Add", f"{output}.4 {output}.5", output)]


def step(order, squash):
    """The step of an LSTM from h and c to h1 and c1."""
    parts = " ".join(order)
    nodes = [
        op("MatMul", "xt w", "xw"),
        op("MatMul", "h u", "hu"),
        op("Add", "xw hu", "both"),
        op("Add", "both b", "all"),
        op("Split", "all", parts, axis=1),
    ]
    nodes += [op(squash if name == "g" else kind, name, f"{name}1") for name, kind in GATES.items()]
    cell = [op("Mul", "f1 c", "kept"), op("Mul", "i1 g1", "added"), op("Add", "kept added", "c1")]
    return [*nodes, *cell, op("Tanh", "c1", "t"), op("Mul", "o1 t", "h1")]


def body(order="ifgo", squash="Tanh", fill="zeros", *, masked=True, where=True, stops=False):
    """The body of a loop as tf2onnx writes it: a counter, the output before, h, c, and one slice of the outputs.

    With `stops` it goes on only where it was going on.
    """
    nodes = [
        op("Gather", "x k", "xt", axis=0),
        *step(order, squash),
        op("Add", "k one", "k1"),
        *([op("Less", "k1 n", "more"), op("And", "more going", "go")] if stops else [op("Less", "k1 n", "go")]),
    ]
    if masked:
        nodes.append(op("Gather", "mask k", "m", axis=0))
        nodes += chosen("h1", "h", "h2", where=where) + chosen("c1", "c", "c2", where=where)
        nodes += chosen("h1", fill, "y", where=where)
    ends = ("y", "h2", "c2", "y") if masked else ("h1", "h1", "c1", "h1")
    copies = [op("Identity", name, f"out{index}") for index, name in enumerate(ends)]
    state = [BATCH, HIDDEN]
    inputs = [value("number", INT64, []), value("going", BOOL, []), value("k", INT64, [])]
    inputs += [value(name, FLOAT, state) for name in "phc"]
    outputs = [value("go", BOOL, []), value("k1", INT64, [])]
    outputs += [value(f"out{index}", FLOAT, state) for index in range(4)]
    return helper.make_graph([*nodes, *copies], "body", inputs, outputs, [constant("one", 1, np.int64)])


def model(graph):
    """A model with a loop. Its inputs are x, and the mask as floats."""
    constants = [
        constant("w", RANDOM.standard_normal((FEATURES, 4 * HIDDEN))),
        constant("u", RANDOM.standard_normal((HIDDEN, 4 * HIDDEN))),
        constant("b", RANDOM.standard_normal(4 * HIDDEN)),
        *(constant(name, RANDOM.standard_normal((BATCH, HIDDEN))) for name in ("h0", "c0", "p0")),
        constant("zeros", np.zeros((BATCH, HIDDEN))),
        constant("n", STEPS, np.int64),
        constant("k0", 0, np.int64),
        constant("true", True, np.bool_),
    ]
    names = [f"y{index}" for index in range(5)]
    node = helper.make_node("Loop", ["", "true", "k0", "p0", "h0", "c0"], names, "steps", body=graph)
    inputs = [value("x", FLOAT, [STEPS, BATCH, FEATURES]), value("floats", FLOAT, [STEPS, BATCH, 1])]
    outputs = [value("y0", INT64, None), *(value(name, FLOAT, None) for name in names[1:])]
    whole = helper.make_graph([op("Cast", "floats", "mask", to=BOOL), node], "g", inputs, outputs, constants)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


MASKS = {
    "all": np.ones((STEPS, BATCH)),
    "some": np.array([[1, 0], [0, 0], [1, 1], [1, 1], [0, 1], [1, 0]]),
    "none of the second": np.array([[0, 0], [1, 0], [1, 0], [0, 0], [1, 0], [1, 0]]),
}


def kinds(proto):
    return Counter(node.op_type for node in proto.graph.node)


def agree(proto, lowered):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = RANDOM.standard_normal((STEPS, BATCH, FEATURES)).astype(np.float32)
    ours = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, mask in MASKS.items():
        feed = {"x": x, "floats": mask.astype(np.float32)[:, :, None]}
        for mine, theirs in zip(ours.run(None, feed), session.run(None, feed), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("where", [True, False])
@pytest.mark.parametrize("fill", FILLS)
def test_a_masked_lstm_is_one_operator_whatever_stands_where_steps_are_left_out(fill, where):
    proto = model(body(fill=fill, where=where))
    lowered = lower(proto)
    assert is_lowered(lowered)
    assert kinds(lowered)["LSTM"] == 1
    assert not {"Loop", "Sigmoid", "Tanh"} & set(kinds(lowered)), "no step is written out"
    agree(proto, lowered)


@pytest.mark.parametrize("order", ["ifgo", "iofg", "fgoi"])
def test_gates_may_stand_in_any_order_and_no_mask_be_there(order):
    proto = model(body(order, masked=False))
    lowered = lower(proto)
    assert kinds(lowered)["LSTM"] == 1
    assert not {"GatherElements", "Where"} & set(kinds(lowered)), "all steps are taken"
    agree(proto, lowered)


def test_a_loop_may_ask_whether_it_was_going_on():
    proto = model(body(stops=True))
    lowered = lower(proto)
    assert kinds(lowered)["LSTM"] == 1
    agree(proto, lowered)


@pytest.mark.parametrize("change", ["another function", "another state", "another start"])
def test_what_is_nearly_an_lstm_stays_a_loop(change):
    graph = body(squash="Relu" if change == "another function" else "Tanh")
    proto = model(graph)
    if change == "another state":  # h is that of the step also where the mask leaves it out
        loop = next(node for node in proto.graph.node if node.op_type == "Loop")
        copy = next(node for node in loop.attribute[0].g.node if node.output[0] == "out1")
        copy.input[0] = "h1"
    if change == "another start":  # the first step reads the second input
        start = next(item for item in proto.graph.initializer if item.name == "k0")
        start.CopyFrom(constant("k0", 1, np.int64))
    lowered = lower(proto)
    assert kinds(lowered)["LSTM"] == 0
    assert kinds(lowered)["Split"] == (STEPS - 1 if change == "another start" else STEPS)
    x = RANDOM.standard_normal((STEPS, BATCH, FEATURES)).astype(np.float32)
    feed = {"x": x, "floats": MASKS["some"].astype(np.float32)[:, :, None]}
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(ReferenceEvaluator(lowered).run(None, feed), session.run(None, feed), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_module_of_a_long_sequence_has_one_kernel_for_all_steps(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(body(where=False)), path)
    text = read_model(path, {}).module.script()
    assert text.count("R.call_tir") == 1
    assert "recurrent_lstm" in text
