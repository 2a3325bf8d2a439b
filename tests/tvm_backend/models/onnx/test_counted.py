"""Tensors with as many rows as the data say: what is computed of them is right, and what may mix rows is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from autotune.errors import OperatorRefused
from autotune.tvm_backend.export.padding import cut, split_counts
from autotune.tvm_backend.models.onnx.counted import NO_COUNTS, counted_outputs, with_counts
from autotune.tvm_backend.models.onnx.read import read_model

SHAPES = {"x": (4, 6), "boxes": (2, 8, 4), "scores": (2, 3, 8)}
FOUND = """
    above = Greater(x, half)
    places = NonZero(above)
    rows = Transpose(places)
    kept = NonMaxSuppression(boxes, scores, most, overlap, least)
"""
CONSTANTS = """
    float half = {0.5}, int64[1] most = {3}, float overlap = {0.4}, float least = {0.3}, int64 i0 = {0}, int64 i1 = {1},
    int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5}, int64[1] six = {6},
    int64[1] end = {9223372036854775807}, int64[1] flat = {-1},
        int64[2] pair = {-1, 1}, int64[2] both = {0, 2}, int64[2] six_four = {6, 4},
    float[3,2] matrix = {1, 2, 3, 4, 5, 6},
"""
CONSTANTS += f"float[24,2] far_rows = {{{', '.join(['1'] * 48)}}}"


def model(tail: str, *outputs: str) -> Any:
    """A graph that finds rows and goes on with them as a text in the syntax of ONNX says."""
    given = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in SHAPES.items())
    made = ", ".join(f"float {name}" for name in outputs)
    head = f'<ir_version: 8, opset_import: ["" : 17]> g ({given}) => ({made})'
    proto = onnx.parser.parse_model(f"{head} <{CONSTANTS}> {{ {FOUND} {tail} }}")
    for item in proto.graph.output:
        item.ClearField("type")
    inferred = {item.name: item for item in onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.output}
    for item in proto.graph.output:
        item.type.tensor_type.elem_type = inferred[item.name].type.tensor_type.elem_type
    return proto


RIGHT = {
    "by_element": "more = Add(rows, two)  a = Cast<to = 1>(more)",
    "along": "b = Unsqueeze(places, zero)",
    "outputs": "c = Identity(kept)",
    "column": "d = Gather<axis = 1>(kept, i1)",
    "columns": "columns = Gather<axis = 1>(kept, both)  e = GatherND(boxes, columns)",
    "out_of_range": "low = Slice(kept, two, end, one)  less = Sub(low, most)  f = Gather<axis = 1>(boxes, less)",
    "again": "h = Reshape(d, pair)",
    "joined": "number = Cast<to = 1>(columns)  g = Concat<axis = 1>(number, e)",
    "product": "three = Cast<to = 1>(kept)  i = MatMul(three, matrix)",
    "reduced": "j = ReduceSum<keepdims = 0>(kept, one)  k = ArgMax<axis = 1>(three)",
    "soft": "l = Softmax(three)",
    "parts": "n, o = Split<axis = 1>(e)",
    "shape_again": """
        size = Shape(d)  full = Concat<axis = 0>(size, one)  p = Reshape(d, full)
        count = Gather(size, i0)  as_list = Unsqueeze(count, zero)  ones = ConstantOfShape(as_list)
        q = Expand(half, as_list)  whole = Shape(kept)  width = Gather(whole, one)
        wide = Concat<axis = 0>(as_list, width)
        r = Expand(h, wide)""",
    "numbers": "number_of = Cast<to = 6>(count)  pair_of = Identity(wide)",
    "listed": "listed = Reshape(count, flat)  whole_part = Slice(whole, zero, one)  u = ConstantOfShape(listed)"
    " v = ConstantOfShape(whole_part)",
    "firsts": "first = Slice(kept, zero, five, zero)  all = Slice(first, zero, end, zero)  t = Identity(all)",
    "unique": "near = Gather<axis = 1>(x, both) coarse = Round(near)"
    " w, w_first, w_group, w_sizes = Unique<axis = 0>(coarse) "
    " levels = Cast<to = 1>(above) flags, , flag_group = Unique<sorted = 0>(levels)",
    "best": "scored = GatherND(x, rows) rows_size = Shape(scored) enough = Min(rows_size, six)"
    " best, best_place = TopK(scored, enough) best_rows = Gather(rows, best_place)"
    " turned = Neg(best_place) from_end = Sub(turned, i1) last_rows = Gather(rows, from_end)",
    "compressed": "some = Gather<axis = 1>(above, i0)  s = Compress<axis = 0>(x, some)",
}
OUTPUTS = (
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "n", "o", "p", "q", "ones", "r", "s", "number_of",
    "pair_of", "t", "u", "v", "w", "w_first", "w_group", "w_sizes", "flags", "flag_group", "best",
    "best_place", "best_rows", "last_rows",
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counted") / "model.onnx"
    onnx.save(model("\n".join(RIGHT.values()), *OUTPUTS), str(path))
    return path


def test_rows_that_are_treated_one_by_one_are_those_of_onnx_runtime(path: Path) -> None:
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_untuned

    imported = read_model(path, {})
    counted = counted_outputs(imported.rewritten)
    assert counted.largest == {
        "a_count": 24,
        "c_count": 18,
        "s_count": 4,
        "t_count": 5,
        "w_count": 4,
        "flags_count": 24,
        "best_count": 6,
    }
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    machine = relax.VirtualMachine(compile_untuned(imported.module, target), tvm.cpu())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for seed, scale in enumerate((1, 1, 0.6, 0)):
        draw = np.random.default_rng(seed).random
        feed = {name: (scale * draw(shape)).astype(np.float32) for name, shape in SHAPES.items()}
        result = [item.numpy() for item in machine["main"](*map(tvm.runtime.tensor, feed.values()))]
        outputs, counts = split_counts(result, counted.names)
        for name, whole, dims, right in zip(OUTPUTS, outputs, counted.dims, session.run(None, feed), strict=True):
            own = cut(whole, dims, counts)
            assert (own.dtype, own.shape) == (right.dtype, right.shape), name
            np.testing.assert_allclose(own, right, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("operator", "tail"),
    [
        ("Add", "y = Add(places, six_four)"),  # along the rows
        ("Add", "far = Cast<to = 1>(rows) y = Add(far, far_rows)"),
        ("Concat", "y = Concat<axis = 0>(rows, rows)"),
        ("Concat", "column = Gather<axis = 1>(kept, both) y = Concat<axis = 1>(rows, column)"),  # two counts
        ("CumSum", "y = CumSum(rows, i0)"),
        ("Div", "y = Div(six_four, rows)"),  # which are 0 beyond the count
        ("Gather", "y = Gather(rows, i0)"),
        ("Gather", "size = Shape(rows) y = Gather(six_four, size)"),
        ("Gather", "size = Shape(rows) y = Gather(size, size)"),
        ("GatherND", "y = GatherND(rows, rows)"),
        ("Cast", "size = Shape(rows) y = Cast<to = 3>(size)"),  # to int8
        ("GatherND", "y = GatherND(x, places)"),
        ("MatMul", "three = Cast<to = 1>(kept) turned = Transpose(three) y = MatMul(turned, three)"),
        ("MatMul", "two_rows = Cast<to = 1>(places) y = MatMul(matrix, two_rows)"),
        ("Mul", "size = Shape(rows) y = Mul(size, size)"),  # of numbers of rows
        ("ReduceMax", "y = ReduceMax(rows, zero)"),
        ("ReduceMax", "y = ReduceMax(rows)"),
        ("Reshape", "y = Reshape(rows, flat)"),
        ("Reshape", "single = Slice(places, zero, one, one) y = Reshape(single, pair)"),  # none gives none of two
        ("Flatten", "single = Slice(rows, zero, one, zero) y = Flatten<axis = 0>(single)"),
        ("Reshape", "y = Reshape(places, pair)"),
        ("Reshape", "size = Shape(places) y = Reshape(rows, size)"),  # which turns nothing
        ("Expand", "size = Shape(rows) y = Expand(size, size)"),
        ("Reshape", "size = Shape(rows) more = Concat<axis = 0>(size, one) y = Reshape(size, more)"),
        ("Expand", "size = Shape(rows) y = Expand(far_rows, size)"),
        ("ScatterND", "y = ScatterND(x, rows, far_rows)"),
        ("Size", "y = Size(rows)"),
        ("Slice", "y = Slice(rows, two, end, zero)"),
        ("Softmax", "far = Cast<to = 1>(rows) y = Softmax<axis = 0>(far)"),
        ("Squeeze", "y = Squeeze(kept)"),
        (
            "TopK",
            "far = Cast<to = 1>(rows) size = Shape(rows) n = Slice(size, zero, one) y, z = TopK<axis = 1>(far, n)",
        ),
    ],
)
def test_what_may_mix_rows_is_refused(operator: str, tail: str) -> None:
    with pytest.raises(OperatorRefused) as caught:
        counted_outputs(model(tail, "y"))
    refusal = caught.value.refusal
    assert refusal is not None and refusal.operator == operator
    assert refusal.advice.startswith("end the model at '") and "as many rows as the data say" in refusal.reason


@pytest.mark.parametrize(
    ("operator", "tail", "why"),
    [
        ("NonZero", "y = NonZero(rows)", "the size of 'rows' depends on the data, or is not known"),
        ("NonMaxSuppression", "y = NonMaxSuppression(boxes, scores)", "it finds nothing, whatever the data are"),
        (
            "NonMaxSuppression",
            "some = Cast<to = 7>(x) y = NonMaxSuppression(boxes, scores, some)",
            "it keeps at most 'some' boxes of each class, which must be a constant, as by --value",
        ),
    ],
)
def test_what_has_no_largest_size_is_refused(operator: str, tail: str, why: str) -> None:
    with pytest.raises(OperatorRefused) as caught:
        counted_outputs(model(tail, "y"))
    assert caught.value.refusal is not None
    assert (caught.value.refusal.operator, caught.value.refusal.reason) == (operator, why)


def test_a_graph_without_such_operators_stays_as_it_is() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    assert with_counts(proto) is proto and counted_outputs(proto) == NO_COUNTS


def test_on_a_gpu_they_are_refused(path: Path) -> None:
    with pytest.raises(OperatorRefused, match="on a GPU nothing may have a size or a length that .*; tune the"):
        read_model(path, {}, gpu=True)


@pytest.mark.parametrize("centered", [0, 1])
def test_a_suppression_keeps_what_onnx_runtime_keeps(tmp_path: Path, centered: int) -> None:
    """Many boxes, of which some have equal scores, with corners in either order."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_untuned

    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 11]>
        g (float[2,100,4] boxes, float[2,3,100] scores) => (int64[n,3] y)
        <int64[1] most = {{20}}, float overlap = {{0.4}}>
        {{ y = NonMaxSuppression<center_point_box = {centered}>(boxes, scores, most, overlap) }}"""
    )
    onnx.save(proto, str(tmp_path / "model.onnx"))
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    executable = compile_untuned(read_model(tmp_path / "model.onnx", {}).module, target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for seed in range(10):
        draw = np.random.default_rng(seed).random
        boxes = draw((2, 100, 4), np.float32) - np.float32(0.5 * (seed % 2))
        scores = np.round(draw((2, 3, 100)), 1 + seed % 3).astype(np.float32)
        rows, count = (item.numpy() for item in machine["main"](*map(tvm.runtime.tensor, (boxes, scores))))
        (right,) = session.run(None, {"boxes": boxes, "scores": scores})
        np.testing.assert_array_equal(rows[: int(count)], right)
        assert not rows[int(count) :].any()
