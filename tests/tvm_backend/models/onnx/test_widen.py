"""A graph of float16 computes the same in float32, and a CPU gets it so."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.models.onnx.simplify import graphs
from autotune.tvm_backend.models.onnx.widen import has_halves, widen

HALF = TensorProto.FLOAT16
FLOAT = TensorProto.FLOAT
X = np.random.default_rng(0).standard_normal((2, 512)).astype(np.float16)


def model(nodes, constants=(), x=HALF, y=HALF):
    ends = [helper.make_tensor_value_info(name, kind, (2, None)) for name, kind in (("x", x), ("y", y))]
    weights = [numpy_helper.from_array(value, name) for name, value in constants]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def product():
    """A long sum, a constant inside an attribute and one that is made while the graph runs."""
    weight = np.random.default_rng(1).standard_normal((512, 8)).astype(np.float16)
    shift = numpy_helper.from_array(np.full(8, 0.5, np.float16))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Constant", [], ["shift"], value=shift),
        helper.make_node("ConstantOfShape", ["size"], ["ones"], value=numpy_helper.from_array(np.ones(1, np.float16))),
        helper.make_node("Sum", ["product", "shift", "ones"], ["y"]),
    ]
    return model(nodes, [("w", weight), ("size", np.array([8]))])


def chosen():
    """Branches that read the input by its name, with a weight of their own."""
    weight = numpy_helper.from_array(np.array([2], np.float16), "two")
    out = [helper.make_tensor_value_info(name, HALF, (2, 512)) for name in ("twice", "less")]
    twice = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["twice"])], "then", [], out[:1], [weight])
    less = helper.make_graph([helper.make_node("Neg", ["x"], ["less"])], "else", [], out[1:])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "limit"], ["small"]),
        helper.make_node("If", ["small"], ["y"], then_branch=twice, else_branch=less),
    ]
    return model(nodes, [("limit", np.array(0, np.float16))])


def converted():
    """Float16 on the inside alone."""
    inside = [helper.make_node("Cast", ["x"], ["half"], to=HALF), helper.make_node("Exp", ["half"], ["grown"])]
    return model([*inside, helper.make_node("Cast", ["grown"], ["y"], to=FLOAT)], x=FLOAT, y=FLOAT)


def run(proto, x):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y


def element_types(proto):
    """The types of all constants, and of all that operators convert to but the last."""
    weights = {item.data_type for graph in graphs(proto.graph) for item in graph.initializer}
    casts = [item.i for node in proto.graph.node[:-1] for item in node.attribute if item.name == "to"]
    return weights | set(casts)


@pytest.mark.parametrize("proto", [product(), chosen()])
def test_a_widened_graph_computes_the_same_with_inputs_and_outputs_of_the_same_types(proto):
    before = proto.SerializeToString()
    wide = widen(proto)
    assert HALF not in element_types(wide) and proto.SerializeToString() == before
    for x in (X, -abs(X)):  # of a choice, either branch
        output = run(wide, x)
        wanted = run(proto, x)
        assert output.dtype == wanted.dtype == np.float16
        np.testing.assert_allclose(output.astype(np.float32), wanted.astype(np.float32), rtol=1e-3, atol=2e-2)


def test_conversions_inside_a_graph_of_float32_go_away():
    assert has_halves(converted())
    wide = widen(converted())
    assert not has_halves(wide)
    x = X.astype(np.float32)
    np.testing.assert_allclose(run(wide, x), np.exp(x), rtol=1e-6, strict=True)


def test_a_graph_of_float32_has_no_halves():
    assert not has_halves(model([helper.make_node("Relu", ["x"], ["y"])], x=FLOAT, y=FLOAT))


def test_a_long_sum_on_a_cpu_is_as_exact_as_that_of_onnx_runtime(target, tmp_path):
    """Summed in float16, the largest error is 100 times as large."""
    import tvm

    from autotune.tvm_backend.export.compilation import compile_untuned
    from autotune.tvm_backend.export.runners import vm_runner

    path = tmp_path / "model.onnx"
    path.write_bytes(product().SerializeToString())
    imported = read_model(path, {"x": InputSpec("x", X.shape, "")})
    assert imported.rewritten is not None and imported.inputs[0].dtype == "float16"
    (y,) = vm_runner(compile_untuned(imported.module, target), tvm.cpu(), [X])()
    wanted = run(product(), X)
    assert y.dtype == np.float16
    ulp = np.spacing(abs(wanted).max())
    np.testing.assert_allclose(y.astype(np.float32), wanted.astype(np.float32), rtol=0, atol=float(ulp))


def test_a_gpu_gets_float16(target, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(product().SerializeToString())
    imported = read_model(path, {"x": InputSpec("x", X.shape, "")}, gpu=True)
    assert imported.rewritten is None
    assert "float32" not in str(imported.module["main"])
