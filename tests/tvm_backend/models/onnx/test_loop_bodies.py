"""Loops that end when the data say so compute what ONNX Runtime computes, and go through all passes as one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from autotune.errors import ModelError, OperatorRefused
from autotune.tvm_backend.export.padding import cut, split_counts
from autotune.tvm_backend.models.onnx.counted import counted_outputs
from autotune.tvm_backend.models.onnx.read import read_model

CONSTANTS = """
    float[4,4] w = {1.2, 0.1, 0, 0, 0, 1.1, 0.2, 0, 0.1, 0, 1.3, 0, 0, 0.3, 0, 1.1}, float limit = {40.0},
    float half = {0.5}, int64 many = {2000}, int64 nine = {9}, int64 i0 = {0}, int64 one = {1}, bool true = {1},
    float f1 = {1.0}, int64[1] first = {0}, int64[2] far = {8, 1500},
    int64[2] column_shape = {8, 1}, int64[1] flat = {8}
"""
LOOPS = {
    # ends by a condition, reads a constant and a tensor from outside
    "grows": """
        start = Relu(x) shift = Mul(start, half)
        y, steps = Loop(many, true, start, i0) <body = grow (int64 i, bool c, float[n,m] h, int64 n)
            => (bool go, float[n,m] h2, int64 n2) {
                p = MatMul(h, w) h2 = Add(p, shift) s = ReduceMax<keepdims = 0>(h2) go = Less(s, limit)
                n2 = Add(n, one) }>""",
    # puts out as many slices as it has steps
    "slices": """
        last, rows = Loop(nine, true, x) <body = halve (int64 i, bool c, float[2,4] h)
            => (bool go, float[2,4] h2, float[4] row) {
                h2 = Mul(h, half) row = ReduceSum<keepdims = 0>(h2, first) s = ReduceMax<keepdims = 0>(h2)
                go = Greater(s, half) }>
        twice = Add(rows, rows)""",
    # has too many steps to be unrolled, and a slice for each
    "long": """
        seed = ReduceMax<keepdims = 0>(x)
        sum, sums = Loop(many, , seed) <body = add (int64 i, bool c, float t1) => (bool go, float t2, float t3) {
            go = Identity(c) f = Cast<to = 1>(i) g = Mul(f, half) d = Cos(g) t2 = Add(t1, d) t3 = Identity(t2) }>""",
    # is a scan of too many operators to be unrolled, backwards
    "scan": """
        flat_x = Reshape(x, flat) column = Reshape(x, column_shape) wide = Expand(column, far)
        z_last, z_all = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_directions = [1], body = smooth (float[8] h, float[8] item) => (float[8] h4, float[8] all) {
                u = Mul(h, half) h4 = Add(u, item) all = Cos(h4) }>(flat_x, wide)""",
    # takes as many steps as the data say, none at first
    "swaps": """
        top = ReduceMax<keepdims = 0>(x) number = Cast<to = 7>(top)
        a, b = Loop(number, , x, start) <body = swap (int64 i, bool c, float[2,4] p, float[2,4] q)
            => (bool c2, float[2,4] q2, float[2,4] s) { c2 = Identity(c) q2 = Identity(q) s = Add(p, q) }>""",
    # has a loop in it, and a branch
    "nested": """
        z = Loop(number, true, x) <body = outer (int64 i, bool c, float[2,4] h) => (bool c3, float[2,4] h5) {
            c3 = Identity(c) m = ReduceMax<keepdims = 0>(h) large = Greater(m, f1)
            h3 = If(large) <then_branch = t () => (float[2,4] r) { r = Sub(h, shift) },
                            else_branch = e () => (float[2,4] r2) { r2 = Add(h, f1) }>
            h5 = Loop(i, , h3) <body = inner (int64 j, bool d, float[2,4] k) => (bool d2, float[2,4] k2) {
                d2 = Identity(d) k2 = Mul(k, half) }> }>""",
}
OUTPUTS = ("y", "steps", "last", "rows", "twice", "sum", "sums", "z_last", "z_all", "a", "b", "z")
SCALES = (0.2, 1, 3.5)


def model(tail: str, *outputs: str, constants: str = CONSTANTS) -> Any:
    made = ", ".join(f"float {name}" for name in outputs)
    head = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => ({made})'
    proto = onnx.parser.parse_model(f"{head} <{constants}> {{ {tail} }}")
    for item in proto.graph.output:
        item.ClearField("type")
    inferred = {item.name: item for item in onnx.shape_inference.infer_shapes(proto).graph.output}
    for item in proto.graph.output:
        item.type.tensor_type.elem_type = inferred[item.name].type.tensor_type.elem_type
    return proto


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loops") / "model.onnx"
    onnx.save(model("\n".join(LOOPS.values()), *OUTPUTS), str(path))
    return path


def compiled(path: Path, kind: str) -> Any:
    import tvm

    from autotune.tvm_backend.export.compilation import compile_tuned, compile_untuned
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.search.tasks import extract_programs

    module = read_model(path, {}).module
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    if kind == "untuned":
        return compile_untuned(module, target)
    prepared = prepare(module, target)
    return compile_tuned(prepared, extract_programs(prepared, target).values(), {}, target)


@pytest.mark.parametrize("kind", ["untuned", "tuned"])
def test_a_loop_takes_as_many_steps_as_that_of_onnx_runtime(path: Path, kind: str) -> None:
    import tvm
    from tvm import relax

    counted = counted_outputs(read_model(path, {}).rewritten)
    assert counted.largest == {"rows_count": 9}
    machine = relax.VirtualMachine(compiled(path, kind), tvm.cpu())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = set()
    for scale in SCALES:
        x = (scale * np.linspace(-1, 1.5, 8)).astype(np.float32).reshape(2, 4)
        result = [item.numpy() for item in machine["main"](tvm.runtime.tensor(x))]
        outputs, counts = split_counts(result, counted.names)
        taken.add((*map(int, counts.values()), int(outputs[1])))
        for name, whole, dims, right in zip(OUTPUTS, outputs, counted.dims, session.run(None, {"x": x}), strict=True):
            own = cut(whole, dims, counts)
            assert (own.dtype, own.shape) == (right.dtype, right.shape), name
            np.testing.assert_allclose(own, right, rtol=2e-4, atol=1e-4, err_msg=name)
    assert len(taken) == len(SCALES)


def test_the_kernels_of_bodies_are_tasks_and_the_loop_is_one_kernel_of_the_network(path: Path) -> None:
    import tvm
    from tvm import relax, tirx

    from autotune.tvm_backend.export.describe import plan_of
    from autotune.tvm_backend.graph.open_loops import compose_loops
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.search.tasks import extract

    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    prepared = prepare(read_model(path, {}).module, target)
    names = {item.name for item in extract(prepared, target).values()}
    assert any("matmul" in name for name in names)
    blocks = plan_of(prepared, target, {}, {}, "model.onnx").blocks
    assert sum(block.operators[0].startswith("loop_") for block in blocks) == len(LOOPS)
    composed = compose_loops(prepared)
    functions = dict(composed.functions.items())
    assert [name.name_hint for name, item in functions.items() if isinstance(item, relax.Function)] == ["main"]
    whiles = [item for item in functions.values() if isinstance(item, tirx.PrimFunc) and "while" in str(item)]
    assert len(whiles) == len(LOOPS)


def test_each_size_of_a_model_has_the_loops_of_its_own(tmp_path: Path) -> None:
    import tvm
    from tvm import relax

    from autotune.options import InputSpec
    from autotune.tvm_backend.export.compilation import compile_tuned
    from autotune.tvm_backend.graph.joined_modules import Joiner
    from autotune.tvm_backend.lowering import prepare

    proto = model(LOOPS["grows"].replace("[2,4]", "[n,m]"), "y", "steps")
    onnx.save(proto, str(tmp_path / "model.onnx"))
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    joiner = Joiner()
    for rows in (2, 3):
        module = read_model(tmp_path / "model.onnx", {"x": InputSpec("x", (rows, 4), "float32")}).module
        joiner.add(f"rows_{rows}", prepare(module, target))
    machine = relax.VirtualMachine(compile_tuned(joiner.module(), [], {}, target), tvm.cpu())
    for rows in (2, 3):
        x = np.full((rows, 4), 0.4, np.float32)
        y, _ = machine[f"rows_{rows}"](tvm.runtime.tensor(x))
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(y.numpy(), session.run(None, {"x": x})[0], rtol=2e-4)


REFUSED = {
    "no largest number of slices": (
        "t = ReduceMax<keepdims = 0>(x) n = Cast<to = 7>(t)"
        " a, s = Loop(n, , x) <body = b (int64 i, bool c, float[2,4] h)"
        " => (bool d, float[2,4] k, float[2,4] l) { d = Identity(c) k = Mul(h, half) l = Identity(k) }>",
        "its number of steps, 'n', follows from the values of inputs",
    ),
    "too many slices": (
        "a, s = Loop(huge, , x) <body = b (int64 i, bool c, float[2,4] h)"
        " => (bool d, float[2,4] k, float[2,4] l) { d = Identity(c) k = Mul(h, half) l = Identity(k) }>",
        "it puts out 4000000000 slices",
    ),
    "another shape": (
        "t = ReduceMax<keepdims = 0>(x) n = Cast<to = 7>(t) a = Loop(n, , x) <body = b (int64 i, bool c, h)"
        " => (bool d, k) { d = Identity(c) k = Concat<axis = 0>(h, h) }>",
        "'h', which it carries, becomes float32 4x4 in a step",
    ),
}


@pytest.mark.parametrize(("tail", "says"), REFUSED.values(), ids=REFUSED)
def test_a_loop_whose_sizes_depend_on_its_length_is_refused(tail: str, says: str, tmp_path: Path) -> None:
    outputs = ["a", "s"] if "a, s" in tail else ["a"]
    proto = model(tail, *outputs, constants=f"{CONSTANTS}, int64 huge = {{4000000000}}")
    onnx.save(proto, str(tmp_path / "model.onnx"))
    with pytest.raises(ModelError, match=f"Loop .*{says}"):
        read_model(tmp_path / "model.onnx", {})


def test_a_loop_is_refused_on_a_gpu(path: Path) -> None:
    with pytest.raises(OperatorRefused, match=r"operator Loop .*on a GPU nothing may have a size or a length"):
        read_model(path, {}, gpu=True)
