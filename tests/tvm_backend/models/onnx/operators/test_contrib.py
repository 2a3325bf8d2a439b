"""Operators of ONNX Runtime's own domain become others that compute what ONNX Runtime computes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.operators.lower import CONTRIB, is_lowered, lower
from autotune.tvm_backend.models.onnx.simplify import fix_shapes

from . import test_decoders

Arrays = Mapping[str, npt.NDArray[Any]]
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def bytes_(*shape: int, dtype: Any = np.uint8) -> Any:
    return RANDOM.integers(0, 100, shape).astype(dtype)


def scale(value: float = 0.05) -> Any:
    return np.float32(value)


def zero(value: int = 3, dtype: Any = np.uint8) -> Any:
    return np.asarray(value, dtype)


# Inputs of an operator by position: the first are the graph's, those whose name begins with "w" are constants.
X = {"x": floats(2, 5, 8)}
NORM = {"x": floats(2, 5, 8), "skip": floats(2, 5, 8), "w_gamma": floats(8), "w_beta": floats(8), "w_bias": floats(8)}
WEIGHTS = {"x": floats(2, 5, 8), "w": floats(8, 24), "w_bias": floats(24)}
HEADS = {"q": floats(2, 5, 8), "k": floats(2, 6, 8), "v": floats(2, 6, 8), "w_bias": floats(24)}
LENGTHS = np.array([5, 3], np.int32)
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)
EMBED = {
    "ids": RANDOM.integers(0, 9, (2, 5)).astype(np.int32),
    "kinds": RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
    "w_words": floats(9, 8),
    "w_places": floats(5, 8),
    "w_kinds": floats(2, 8),
    "w_gamma": floats(8),
    "w_beta": floats(8),
    "mask": MASK,
}
Q = {"x": bytes_(2, 3, 4, 4), "w_s": scale(), "w_z": zero()}
TWO = {**Q, "b": bytes_(2, 3, 4, 4), "w_bs": scale(0.02), "w_bz": zero(9), "w_ys": scale(0.1), "w_yz": zero(5)}
ONE = {**Q, "w_ys": scale(0.01), "w_yz": zero(5)}
CASES: list[tuple[str, Arrays, Mapping[str, Any]]] = [
    ("BiasGelu", {**X, "w": floats(8)}, {}),
    ("Gelu", X, {}),
    ("FastGelu", {**X, "w": floats(8)}, {}),
    ("FastGelu", X, {}),
    ("QuickGelu", X, {"alpha": 1.5}),
    ("FusedMatMul", {"a": floats(2, 8, 5), "b": floats(2, 6, 8)}, {"transA": 1, "transB": 1, "alpha": 0.3}),
    ("FusedMatMul", {"a": floats(2, 5, 8), "w": floats(8, 3)}, {}),
    ("SkipLayerNormalization", NORM, {"epsilon": 1e-5}),
    ("SkipLayerNormalization", {name: NORM[name] for name in list(NORM)[:3]}, {}),
    ("SkipSimplifiedLayerNormalization", {name: NORM[name] for name in list(NORM)[:3]}, {"epsilon": 1e-5}),
    ("EmbedLayerNormalization", EMBED, {"epsilon": 1e-5}),
    ("EmbedLayerNormalization", {**EMBED, "kinds": None, "w_kinds": None, "mask": None}, {}),
    ("Attention", WEIGHTS, {"num_heads": 2}),
    ("Attention", {**WEIGHTS, "mask": LENGTHS}, {"num_heads": 2}),
    ("Attention", {**WEIGHTS, "mask": MASK}, {"num_heads": 2, "scale": 0.2}),
    ("Attention", WEIGHTS, {"num_heads": 2, "unidirectional": 1}),
    ("Attention", {**WEIGHTS, "mask": None, "past": None, "added": floats(2, 2, 5, 5)}, {"num_heads": 2}),
    ("MultiHeadAttention", HEADS, {"num_heads": 2}),
    ("MultiHeadAttention", {name: HEADS[name] for name in "qkv"}, {"num_heads": 4, "scale": 0.7}),
    ("MultiHeadAttention", {**HEADS, "mask": np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)}, {"num_heads": 2}),
    (
        "QAttention",
        {
            "x": bytes_(2, 5, 8),
            "w": bytes_(8, 24, dtype=np.int8),
            "w_bias": floats(24),
            "w_xs": scale(0.01),
            "w_ws": scale(0.02),
            "mask": LENGTHS,
            "w_xz": zero(9),
            "w_wz": zero(2, np.int8),
        },
        {"num_heads": 2},
    ),
    ("DynamicQuantizeMatMul", {"x": floats(3, 8), "w": bytes_(8, 4), "w_s": scale(), "w_z": zero()}, {}),
    (
        "MatMulIntegerToFloat",
        {"a": bytes_(3, 8), "w": bytes_(8, 4), "w_as": scale(), "w_bs": scale(), "w_az": zero(), "w_bz": zero()},
        {},
    ),
    ("QLinearAdd", TWO, {}),
    ("QLinearMul", TWO, {}),
    ("QLinearSigmoid", ONE, {}),
    ("QLinearLeakyRelu", ONE, {"alpha": 0.1}),
    ("QLinearGlobalAveragePool", ONE, {}),
    ("QLinearAveragePool", ONE, {"kernel_shape": [2, 2]}),
    ("QLinearSoftmax", {**ONE, "w_ys": scale(1 / 256), "w_yz": zero(0)}, {"axis": 3, "opset": 13}),
    (
        "QLinearConcat",
        {"w_ys": scale(0.1), "w_yz": zero(5), **{name: TWO[name] for name in ("x", "w_s", "w_z", "b", "w_bs", "w_bz")}},
        {"axis": 1},
    ),
]


def graph(kind: str, inputs: Arrays, attributes: Mapping[str, Any], opset: int) -> Any:
    given = {name: value for name, value in inputs.items() if value is not None}
    names = [name if name in given else "" for name in inputs]
    outputs = ["y", "mask_index"] if kind == "EmbedLayerNormalization" else ["y"]
    node = helper.make_node(kind, names, outputs, domain="com.microsoft", **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
        if not name.startswith("w")
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items() if name[0] == "w"]
    made = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")], weights)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=versions, ir_version=8)


def run(proto: Any, inputs: Arrays) -> list[npt.NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {item.name: inputs[item.name] for item in session.get_inputs()}))


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"), CASES, ids=[f"{kind}{index}" for index, (kind, *_) in enumerate(CASES)]
)
def test_an_operator_of_onnx_runtime_is_lowered_to_others_that_compute_the_same(
    kind: str, inputs: Arrays, attributes: Mapping[str, Any], opset: int
) -> None:
    proto = graph(kind, inputs, attributes, opset)
    free = [InputSpec(item.name, inputs[item.name].shape, str(inputs[item.name].dtype)) for item in proto.graph.input]
    lowered = fix_shapes(proto, free)
    while not is_lowered(lowered):
        lowered = lower(lowered)
    assert not any(node.domain for node in lowered.graph.node)
    (ours,) = run(lowered, inputs)
    (theirs,) = run(proto, inputs)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if ours.dtype == np.uint8:  # a value between two integers may go to either
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_every_rule_is_tried() -> None:
    of_decoders = {kind for kind, *_ in test_decoders.CASES.values()}
    assert {kind for kind, *_ in CASES} == set(CONTRIB) - of_decoders


def test_what_has_no_rule_is_said_with_the_operator() -> None:
    inputs = {**WEIGHTS, "mask": None, "past": floats(2, 2, 2, 3, 4)}
    proto = graph("Attention", inputs, {"num_heads": 2}, 17)
    with pytest.raises(
        ModelError,
        match=r"operator Attention 'y' \(opset 17, inputs: .*\) is not supported: it reads what earlier steps computed",
    ):
        lower(proto)


def test_shapes_are_known_behind_them() -> None:
    """ONNX infers none through the operators of another domain, and a rule behind one may want them."""
    proto = graph("BiasGelu", {**X, "w": floats(8)}, {}, 17)
    proto.graph.node[0].output[0] = "gelu"
    proto.graph.node.append(helper.make_node("LpNormalization", ["gelu"], ["y"], axis=1))
    assert is_lowered(lower(fix_shapes(proto, [InputSpec("x", (2, 5, 8), "float32")])))
