"""A quantised library is right if it is as near to the same weights in float32 as its runtime is, and no mutant is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.export.runners import Arrays, onnx_session
from autotune.tvm_backend.export.verification.float_reference import judge
from autotune.tvm_backend.models.onnx.in_floats import in_floats

WIDTH = 64
LAYERS = 4
TOLERANCE = 1e-4
INPUTS = [np.random.default_rng(seed).standard_normal((32, WIDTH)).astype(np.float32) for seed in range(2)]


@dataclass(frozen=True)
class Layer:
    """A product of bytes, whose result is quantised."""

    weight: Any
    scale: Any
    zero: int = 128
    axis: int = 1


def layers() -> list[Layer]:
    rng = np.random.default_rng(3)
    scale = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32) / np.float32(75 * np.sqrt(WIDTH))
    return [Layer(rng.integers(-128, 128, (WIDTH, WIDTH)).astype(np.int8), scale) for _ in range(LAYERS)]


def network(chosen: list[Layer], nudge: float = 0.0) -> Any:
    """The layers one after the other. `nudge` moves what is rounded, as sums in another order do."""
    constants: dict[str, Any] = {"step": np.float32(0.03), "nudge": np.float32(nudge)}
    nodes = []
    x = "x"
    for number, layer in enumerate(chosen):
        constants |= {f"w{number}": layer.weight, f"s{number}": layer.scale, f"z{number}": np.uint8(layer.zero)}
        nodes += [
            helper.make_node("Add", [x, "nudge"], [f"n{number}"]),
            helper.make_node("QuantizeLinear", [f"n{number}", "step", f"z{number}"], [f"q{number}"]),
            helper.make_node("DequantizeLinear", [f"q{number}", "step", f"z{0 if number else number}"], [f"f{number}"]),
            helper.make_node("DequantizeLinear", [f"w{number}", f"s{number}"], [f"v{number}"], axis=layer.axis),
            helper.make_node("MatMul", [f"f{number}", f"v{number}"], [f"y{number}"]),
        ]
        x = f"y{number}"
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    value = helper.make_tensor_value_info
    ends = value("x", TensorProto.FLOAT, [32, WIDTH]), value(x, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [ends[0]], [ends[1]], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(proto: Any, *, plain: bool = True) -> list[Arrays]:
    session = onnx_session(proto.SerializeToString(), 1, plain=plain)
    return [list(session.run(None, {"x": x})) for x in INPUTS]


def is_right(library: Any) -> bool:
    submitted = network(layers())
    floats = in_floats(submitted)
    assert floats is not None
    ways = [run(submitted), run(submitted, plain=False)]
    return judge(run(library), ways, run(floats), TOLERANCE)[1]


def test_a_library_that_rounds_otherwise_is_right() -> None:
    library = network(layers(), nudge=1e-3)
    assert np.abs(run(library)[0][0] - run(network(layers()))[0][0]).max() > 0.01
    assert is_right(library)


def test_a_library_that_rounds_nothing_is_right() -> None:
    library = in_floats(network(layers()))
    assert is_right(library)


def mutant(**changed: Any) -> Any:
    chosen = layers()
    chosen[1] = replace(chosen[1], **changed)
    return network(chosen, nudge=1e-3)


ONE = layers()[1]


@pytest.mark.parametrize(
    "library",
    [
        mutant(scale=ONE.scale * np.float32(1.05)),
        mutant(scale=np.roll(ONE.scale, 1)),
        mutant(zero=129),
        mutant(weight=np.roll(ONE.weight, 1, axis=0)),
        mutant(weight=np.roll(ONE.weight, 1, axis=1)),
        mutant(weight=ONE.weight.T.copy()),
        mutant(axis=0),
        network(layers()[:3], nudge=1e-3),
    ],
    ids=["scale", "scales", "zero point", "rows", "columns", "transposed", "axis", "a layer less"],
)
def test_a_wrong_library_is_not_taken_for_another_rounding(library: Any) -> None:
    assert not is_right(library)


def test_one_wrong_value_among_many_is_refused() -> None:
    submitted = network(layers())
    floats = in_floats(submitted)
    ours = run(network(layers(), nudge=1e-3))
    ours[0][0][5, 7] += 0.2 * np.abs(ours[0][0]).max()
    assert not judge(ours, [run(submitted)], run(floats), TOLERANCE)[1]


def test_a_runtime_that_is_far_off_decides_nothing() -> None:
    (exact,) = [np.float32([[1, 2, 3, 4]])]
    far = exact + np.float32(0.5)
    assert not judge([[far]], [[[far]]], [[exact]], TOLERANCE)[1]


def test_values_that_are_no_numbers_are_wrong() -> None:
    exact = np.float32([[1, 2, 3, 4]])
    assert not judge([[exact * np.float32("nan")]], [[[exact + np.float32(0.1)]]], [[exact]], TOLERANCE)[1]
