"""What is not a number stays so through every operator of floats, as NumPy and ONNX have it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.target import resolve_target, tvm_target
from tests.tvm_backend.handed_over import built, lowered, machine, outputs_of, outputs_of_program

Array = npt.NDArray[Any]
SHAPE = (1, 16, 8, 8)
X = "x"
# Of float32: what NumPy makes, what x86 makes of 0 / 0, all bits set, the first and the last number of the type.
KINDS = (0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7F800001, 0x7FFFFFFF)


def array(bits: int) -> Array:
    """Numbers, of which a few are none: neither at the beginning nor at the end of any window."""
    values = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    for place in ((0, 3, 2, 2), (0, 8, 5, 1)):
        values.view(np.uint32)[place] = bits
    return values


def windows(x: Array, size: int, step: int, pad: int, reduce: Callable[..., Array]) -> Array:
    edge = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    padded = np.pad(x, edge, constant_values=-np.inf)
    return reduce(
        np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::step, ::step], (-2, -1)
    )


def through(kind: str, *operands: Any, **attributes: Any) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    return kind, operands, attributes


def same(x: Array) -> Array:
    return x


def number(value: float) -> Array:
    return np.array(value, np.float32)


HALF = np.full(SHAPE, 0.5, np.float32)
# An operator, and what NumPy computes that is not-a-number where its result is.
OPERATORS: dict[str, tuple[Any, Callable[[Array], Array]]] = {
    "Abs": (through("Abs", X), np.abs),
    "Celu": (through("Celu", X), same),
    "Clip": (through("Clip", X, number(-1), number(1)), lambda x: np.clip(x, -1, 1)),
    "Clip below": (through("Clip", X, number(0)), same),
    "Clip above": (through("Clip", X, "", number(0)), same),
    "Cos": (through("Cos", X), np.cos),
    "Elu": (through("Elu", X), same),
    "Erf": (through("Erf", X), same),
    "Exp": (through("Exp", X), np.exp),
    "HardSigmoid": (through("HardSigmoid", X), same),
    "HardSwish": (through("HardSwish", X), same),
    "LeakyRelu": (through("LeakyRelu", X), same),
    "Max": (through("Max", X, HALF), lambda x: np.maximum(x, HALF)),
    "Max, second": (through("Max", HALF, X), lambda x: np.maximum(HALF, x)),
    "Min": (through("Min", X, HALF), lambda x: np.minimum(x, HALF)),
    "PRelu": (through("PRelu", X, np.full((16, 1, 1), 0.1, np.float32)), same),
    "Relu": (through("Relu", X), lambda x: np.maximum(x, 0)),
    "Selu": (through("Selu", X), same),
    "Sigmoid": (through("Sigmoid", X), same),
    "Sign": (through("Sign", X), np.sign),
    "Sin": (through("Sin", X), np.sin),
    "Softplus": (through("Softplus", X), same),
    "Softsign": (through("Softsign", X), same),
    "Tanh": (through("Tanh", X), np.tanh),
    "Atan": (through("Atan", X), np.arctan),
    "Asinh": (through("Asinh", X), np.arcsinh),
    "Cosh": (through("Cosh", X), np.cosh),
    "AveragePool": (through("AveragePool", X, kernel_shape=[2, 2]), lambda x: windows(x, 2, 1, 0, np.mean)),
    "GlobalAveragePool": (through("GlobalAveragePool", X), lambda x: x.mean((2, 3), keepdims=True)),
    "GlobalMaxPool": (through("GlobalMaxPool", X), lambda x: x.max((2, 3), keepdims=True)),
    "MaxPool": (
        through("MaxPool", X, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        lambda x: windows(x, 3, 2, 1, np.max),
    ),
    "MaxPool of every window": (through("MaxPool", X, kernel_shape=[2, 2]), lambda x: windows(x, 2, 1, 0, np.max)),
    "ReduceMax": (through("ReduceMax", X, axes=[1]), lambda x: x.max(1, keepdims=True)),
    "ReduceMax of rows": (through("ReduceMax", X, axes=[-1]), lambda x: x.max(-1, keepdims=True)),
    "ReduceMin": (through("ReduceMin", X, axes=[1]), lambda x: x.min(1, keepdims=True)),
    "ReduceSum": (through("ReduceSum", X, np.array([1])), lambda x: x.sum(1, keepdims=True)),
    "LogSoftmax": (through("LogSoftmax", X), lambda x: x + x.sum(-1, keepdims=True)),
    "Softmax": (through("Softmax", X), lambda x: x + x.sum(-1, keepdims=True)),
    "Softmax of channels": (through("Softmax", X, axis=1), lambda x: x + x.sum(1, keepdims=True)),
}


def network(operators: Mapping[str, Any]) -> onnx.ModelProto:
    """A model with an output for each operator on its input."""
    nodes = []
    constants = []
    for index, (kind, operands, attributes) in enumerate(operators.values()):
        names = []
        for operand in operands:
            if not isinstance(operand, str):
                constants.append(numpy_helper.from_array(operand, f"constant{len(constants)}"))
            names.append(operand if isinstance(operand, str) else constants[-1].name)
        nodes.append(helper.make_node(kind, names, [f"y{index}"], **attributes))
    data = helper.make_tensor_value_info(X, TensorProto.FLOAT, SHAPE)
    results = [helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, None) for index in range(len(nodes))]
    graph = helper.make_graph(nodes, "operators", [data], results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


@pytest.fixture(scope="module", params=("x86-64-v3", pytest.param("x86-64-v4", marks=pytest.mark.slow)))
def computed(request, target, made_once):
    """The outputs of all operators by name, for each kind of what is not a number."""
    import tvm

    if request.param == "x86-64-v4" and "avx512vl" not in cpu_flags():
        pytest.skip("this CPU lacks avx512vl")

    def make(folder: Path) -> None:
        path = folder / "operators.onnx"
        onnx.save(network({name: operator for name, (operator, _) in OPERATORS.items()}), path)
        cpu = tvm.target.Target({"kind": "llvm", "mcpu": request.param, "num-cores": 2})
        lowered(path, cpu).library(folder)

    model = machine(made_once(f"operators-{request.param}", make) / "model.so")
    outputs = [outputs_of(model["main"](tvm.runtime.tensor(array(bits)))) for bits in KINDS]
    return {name: [of_kind[index] for of_kind in outputs] for index, name in enumerate(OPERATORS)}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_makes_no_number_of_what_is_none(computed, name):
    for bits, output in zip(KINDS, computed[name], strict=True):
        with np.errstate(all="ignore"):
            expected = OPERATORS[name][1](array(bits))
        np.testing.assert_array_equal(np.isnan(output), np.isnan(expected))


def convolutions() -> onnx.ModelProto:
    """Two convolutions with what networks have behind them, of which the first is pooled."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) / 12 for shape in ((32, 16, 3, 3), (16, 32, 1, 1))]
    constants = [numpy_helper.from_array(item, f"w{index}") for index, item in enumerate(weights)]
    constants += [numpy_helper.from_array(number(value), name) for name, value in (("low", 0), ("high", 6))]
    nodes = [
        helper.make_node("Conv", [X, "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w1"], ["d"]),
        helper.make_node("Clip", ["d", "low", "high"], ["y0"]),
        helper.make_node("GlobalMaxPool", ["y0"], ["y1"]),
    ]
    data = helper.make_tensor_value_info(X, TensorProto.FLOAT, SHAPE)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y0", "y1")]
    graph = helper.make_graph(nodes, "convolutions", [data], results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def reached(pixel: tuple[int, int]) -> Array:
    """The pixels of the first output that depend on one of the input."""
    mask = np.zeros((10, 10), bool)
    mask[pixel[0] : pixel[0] + 3, pixel[1] : pixel[1] + 3] = True
    return mask[1:9, 1:9].reshape(4, 2, 4, 2).any((1, 3))


@pytest.fixture(params=("fp32", "bf16"))
def exported(request, target, tmp_path):
    if request.param == "bf16" and "avx512_bf16" not in cpu_flags():
        pytest.skip("this CPU lacks avx512_bf16")
    path = tmp_path / "convolutions.onnx"
    onnx.save(convolutions(), path)
    return lowered(path, tvm_target(resolve_target("llvm", 2).description), request.param)


def check(outputs: Sequence[Array], pixels: Array) -> None:
    np.testing.assert_array_equal(np.isnan(outputs[0]), np.broadcast_to(pixels, outputs[0].shape))
    assert np.isnan(outputs[1]).all()


def test_a_library_hands_on_what_is_not_a_number_to_all_that_depends_on_it(exported, tmp_path: Path):
    import tvm

    model = machine(exported.library(tmp_path))
    for bits in KINDS:
        x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
        x.view(np.uint32)[0, 3, 2, 2] = bits
        check(outputs_of(model["main"](tvm.runtime.tensor(x))), reached((2, 2)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_program_hands_on_what_is_not_a_number_to_all_that_depends_on_it(exported, tmp_path: Path):
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    x[0, 3, 2, 2] = np.nan
    like = [np.zeros((1, 16, 4, 4), np.float32), np.zeros((1, 16, 1, 1), np.float32)]
    check(outputs_of_program(built(exported.source(tmp_path)), tmp_path, [x], like), reached((2, 2)))
