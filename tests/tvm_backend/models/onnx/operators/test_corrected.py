"""Operators that TVM's importer computes otherwise: what they put out beside ONNX Runtime and ONNX's own evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from autotune.errors import ModelError, OperatorRefused
from autotune.tvm_backend.expressions import op_name
from autotune.tvm_backend.models.onnx.read import read_model


def one(tmp_path: Path, kind: str, arrays: list[Any], opset: int = 18, **attributes: Any) -> Path:
    """A file with one operator."""
    names = [f"x{number}" for number in range(len(arrays))]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], **attributes)], "g", given, [onnx.ValueInfoProto(name="y")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def compute(path: Path, arrays: list[Any]) -> Any:
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_untuned

    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    machine = relax.VirtualMachine(compile_untuned(read_model(path, {}).module, target), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def body(path: Path) -> Any:
    return read_model(path, {}).module["main"].body


def expected(path: Path, arrays: list[Any]) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{number}": array for number, array in enumerate(arrays)})[0]


def test_a_bound_with_an_axis_adds_none_to_the_result(tmp_path):
    x = np.float32(2)
    path = one(tmp_path, "Clip", [np.asarray(x)])
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3], np.float32), "bound"))
    model.graph.node[0].input.append("bound")
    onnx.save(model, path)
    assert [int(size) for size in body(path).ty.shape] == []


@pytest.mark.parametrize("bounds", [(-0.5, 0.5), (0.0,), (np.nan, 0.5), (-0.5, np.nan), (1.0, -1.0)])
def test_bounds_that_are_constants_are_those_of_a_maximum_and_a_minimum(tmp_path, bounds):
    x = np.linspace(-2, 2, 12, dtype=np.float32)
    path = one(tmp_path, "Clip", [x])
    model = onnx.load(path)
    for place, bound in enumerate(bounds):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(bound), f"bound{place}"))
        model.graph.node[0].input.append(f"bound{place}")
    onnx.save(model, path)
    assert np.array_equal(compute(path, [x]), expected(path, [x]))
    operators = {op_name(item.value) for block in body(path).blocks for item in block.bindings}
    assert operators <= {"relax.maximum", "relax.minimum", ""}, "no question of whether a number is NaN"


def gathering(tmp_path, indices, axis):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = one(tmp_path, "Gather", [x], axis=axis)
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(indices, np.int64), "indices"))
    model.graph.node[0].input.append("indices")
    onnx.save(model, path)
    return path, x


@pytest.mark.parametrize(("indices", "axis"), [(1, 0), (-1, 1), ([-4], -1), ([[2, -2], [-3, 0]], 1)])
def test_rows_that_are_constants_are_known_before_the_model_runs(tmp_path, indices, axis):
    path, x = gathering(tmp_path, indices, axis)
    assert np.array_equal(compute(path, [x]), expected(path, [x]))
    operators = {op_name(item.value) for block in body(path).blocks for item in block.bindings}
    assert operators <= {"relax.take", ""}, "nothing asks whether an index is negative"


def test_a_row_beyond_the_end_is_refused(tmp_path):
    path, _ = gathering(tmp_path, [0, 4], 2)
    with pytest.raises(ModelError, match=r"idx=4 must be within the inclusive range \[-4,3\]"):
        read_model(path, {})


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_a_shift_by_all_bits_or_more_is_0(tmp_path: Path, target: Any, direction: str, dtype: Any) -> None:
    bits = np.dtype(dtype).itemsize * 8
    arrays = [np.array([200, 200, 200, 200, 200], dtype), np.array([0, 1, bits - 1, bits, bits + 1], dtype)]
    path = one(tmp_path, "BitShift", arrays, direction=direction)
    exact = [200 << int(n) & 2**bits - 1 if direction == "LEFT" else 200 >> int(n) for n in arrays[1]]
    assert compute(path, arrays).tolist() == exact


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_a_shift_of_signed_numbers_leaves_their_sign(tmp_path: Path, target: Any, direction: str) -> None:
    arrays = [np.array([-200, -200, -200, 200, 200], np.int32), np.array([1, 32, -1, 40, 3], np.int32)]
    path = one(tmp_path, "BitShift", arrays, 26, direction=direction)
    exact = [-400, 0, 0, 0, 1600] if direction == "LEFT" else [-100, -1, -1, 0, 25]
    assert compute(path, arrays).tolist() == exact


@pytest.mark.parametrize(("positive", "negative"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_infinities_of_one_sign(tmp_path: Path, target: Any, positive: int, negative: int) -> None:
    arrays = [np.array([1, np.inf, -np.inf, np.nan], np.float32)]
    path = one(tmp_path, "IsInf", arrays, 20, detect_positive=positive, detect_negative=negative)
    assert compute(path, arrays).tolist() == [False, bool(positive), bool(negative), False]


@pytest.mark.parametrize(
    ("reduction", "axis", "given"),
    [
        *((reduction, 0, (3, 2, 3)) for reduction in ("none", "add", "mul", "max", "min")),
        *(("none", axis, given) for axis, given in ((0, (3, 3, 4)), (-1, (1, 2, 2)))),
        *(("add", axis, given) for axis, given in ((0, (3, 3, 4)), (1, (2, 3, 4)), (-1, (1, 2, 2)))),
    ],
)
def test_scattered_elements(tmp_path: Path, target: Any, reduction: str, axis: int, given: tuple[int, ...]) -> None:
    rng = np.random.default_rng(axis + 1)
    data = rng.standard_normal((2, 3, 4), dtype=np.float32)
    size = data.shape[axis]
    indices = rng.integers(-size, size, given) if reduction != "none" else np.zeros(given, np.int64) - 1
    if reduction == "none":  # with one of the updates for each place
        indices = np.take(indices, [0], axis)
        given = indices.shape
    arrays = [data, indices, rng.standard_normal(given, dtype=np.float32)]
    path = one(tmp_path, "ScatterElements", arrays, axis=axis, reduction=reduction)
    np.testing.assert_allclose(compute(path, arrays), expected(path, arrays), rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattered_slices(tmp_path: Path, target: Any, reduction: str) -> None:
    rng = np.random.default_rng(1)
    places = np.array([[0], [-1], [-1 if reduction != "none" else 1]])
    arrays = [rng.standard_normal((4, 3), dtype=np.float32), places, rng.standard_normal((3, 3), dtype=np.float32)]
    path = one(tmp_path, "ScatterND", arrays, reduction=reduction)
    np.testing.assert_allclose(compute(path, arrays), expected(path, arrays), rtol=1e-6)


def test_a_maximum_of_an_old_opset_is_taken_as_onnx_runtime_takes_it(tmp_path: Path, target: Any) -> None:
    arrays = [np.zeros((2, 2), np.float32), np.array([[0, 0]]), np.array([[1, -1]], np.float32)]
    path = one(tmp_path, "ScatterElements", arrays, 16, reduction="max")
    assert compute(path, arrays).tolist() == expected(path, arrays).tolist() == [[1, 0], [0, 0]]


def test_blocks_become_channels_in_either_order(tmp_path: Path, target: Any) -> None:
    arrays = [np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)]
    path = one(tmp_path, "SpaceToDepth", arrays, 13, blocksize=2)
    blocks = arrays[0].reshape(1, 3, 2, 2, 2, 2)
    np.testing.assert_array_equal(compute(path, arrays), blocks.transpose(0, 3, 5, 1, 2, 4).reshape(1, 12, 2, 2))
    path = one(tmp_path, "SpaceToDepth", arrays, 26, blocksize=2, mode="CRD")
    np.testing.assert_array_equal(compute(path, arrays), blocks.transpose(0, 1, 3, 5, 2, 4).reshape(1, 12, 2, 2))


def test_maxima_of_regions_are_refused(tmp_path: Path, target: Any) -> None:
    arrays = [np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 4), np.float32), np.zeros(1, np.int64)]
    path = one(tmp_path, "RoiAlign", arrays, 16, mode="max")
    with pytest.raises(OperatorRefused) as caught:
        read_model(path, {})
    assert caught.value.refusal is not None and caught.value.refusal.operator == "RoiAlign"
    assert "maximum of a region" in caught.value.refusal.reason


@pytest.mark.parametrize("value", [None, 7])
def test_a_constant_without_axes_is_a_number(tmp_path: Path, value: int | None) -> None:
    shape = helper.make_node("Constant", [], ["shape"], value=onnx.numpy_helper.from_array(np.zeros(0, np.int64)))
    given = {} if value is None else {"value": onnx.numpy_helper.from_array(np.array([value], np.int64))}
    nodes = [shape, helper.make_node("ConstantOfShape", ["shape"], ["number"], **given)]
    kind = onnx.TensorProto.FLOAT if value is None else onnx.TensorProto.INT64
    nodes.append(helper.make_node("Add", ["x", "number"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, kind, [3]) for name in "xy")
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(proto, tmp_path / "m.onnx")
    array = np.arange(3, dtype=helper.tensor_dtype_to_np_dtype(kind))
    np.testing.assert_array_equal(compute(tmp_path / "m.onnx", [array]), array + (value or 0))
