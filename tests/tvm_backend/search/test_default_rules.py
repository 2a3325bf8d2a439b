"""Default schedules compute what the program does, reduce once, and share threads and vectors at every length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te, tirx

from autotune import strategies
from autotune.options import InputSpec
from autotune.storage.formats import Trial
from autotune.strategies import samplers
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.export.host_tensors import tensors_of
from autotune.tvm_backend.export.runners import onnx_session
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search import propose as proposing
from autotune.tvm_backend.search.default_rules import default_rule
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, by_rule, propose
from autotune.tvm_backend.search.tasks import extract_programs
from autotune.tvm_backend.untrusted_traces import WHOLE_VECTORS

_PARALLEL = 1
_VECTORIZED = 2
_RNG = np.random.default_rng(0)


def network(kind: str, shape: tuple[int, ...], *constants: Any, **attributes: Any) -> Any:
    tensors = [numpy_helper.from_array(np.asarray(item), f"c{place}") for place, item in enumerate(constants)]
    node = helper.make_node(kind, ["x", *(item.name for item in tensors)], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "network", [x], [onnx.ValueInfoProto(name="y")], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


@pytest.fixture
def prepared(tmp_path: Path, target: Any) -> Callable[..., Any]:
    def read(proto: Any, shape: tuple[int, ...]) -> Any:
        path = tmp_path / "model.onnx"
        onnx.save(proto, str(path))
        return prepare(read_model(path, {"x": InputSpec("x", shape, "float32")}).module, target)

    return read


CASES = [
    ("Softmax", (2, 40, 97), (), {"axis": -1}),
    ("Softmax", (1, 4, 1285), (), {"axis": -1}),
    ("Softmax", (1, 84, 130), (), {"axis": 1}),
    ("LogSoftmax", (1, 30, 97), (), {"axis": -1}),
    ("LogSoftmax", (1, 3, 1285), (), {"axis": -1}),
    ("ReduceMax", (4, 96, 768), (), {"axes": [-1]}),
    ("ReduceMax", (1, 16, 28, 29), (), {"axes": [1]}),
    ("ReduceMin", (1, 64, 14, 14), (), {"axes": [2, 3]}),
    ("ReduceMean", (1, 8, 37, 41), (), {"axes": [0, 1, 2, 3]}),
    ("ReduceMean", (1, 8, 24, 56), (), {"axes": [0, 1, 2, 3]}),
    ("ReduceProd", (3, 5), (), {"axes": [-1]}),
    ("ReduceL2", (7, 129), (), {"axes": [-1]}),
    ("ReduceLogSumExp", (1, 128, 60), (), {"axes": [1]}),
    ("ArgMax", (1, 4, 1285), (), {"axis": -1}),
    ("MaxPool", (1, 8, 57, 57), (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", (1, 8, 20, 20), (), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ("GlobalAveragePool", (1, 64, 7, 7), (), {}),
    ("MeanVarianceNormalization", (1, 6, 20, 33), (), {}),
    ("LayerNormalization", (1, 16, 1021), (np.ones(1021, np.float32), np.ones(1021, np.float32)), {}),
    ("Exp", (3, 5, 7, 7), (), {}),
    ("Abs", (4099,), (), {}),
    ("Transpose", (1, 24, 9, 17), (), {"perm": [0, 2, 3, 1]}),
    ("Transpose", (1, 32, 24, 8), (), {"perm": [0, 2, 3, 1]}),
    ("Transpose", (2, 3, 48, 32), (), {"perm": [0, 1, 3, 2]}),
    ("Sigmoid", (64, 97), (), {}),
]


@pytest.mark.parametrize(("kind", "shape", "constants", "attributes"), CASES)
def test_an_operator_without_a_trial_is_what_onnx_runtime_computes(
    prepared: Any, target: Any, kind: str, shape: tuple[int, ...], constants: Any, attributes: Any
) -> None:
    proto = network(kind, shape, *constants, **attributes)
    x = _RNG.standard_normal(shape).astype(np.float32)
    lowered = prepared(proto, shape)
    programs = extract_programs(lowered, target).values()
    assert all(default_rule(program) is not None for program in programs)
    machine = relax.VirtualMachine(compile_tuned(lowered, programs, {}, target), tvm.cpu())
    (ours,) = (item.numpy() for item in tensors_of(machine["main"](tvm.runtime.tensor(x))))
    (right,) = onnx_session(proto.SerializeToString(), 1).run(None, {"x": x})
    np.testing.assert_allclose(ours, right, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("axes", "shape"), [([-1], (3, 777)), ([1], (1, 33, 50))])
def test_what_is_no_number_stays(prepared: Any, target: Any, value: float, axes: list[int], shape: Any) -> None:
    proto = network("ReduceMax", shape, axes=axes)
    x = _RNG.standard_normal(shape).astype(np.float32)
    x.flat[41] = value
    lowered = prepared(proto, shape)
    built = compile_tuned(lowered, extract_programs(lowered, target).values(), {}, target)
    ours = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(ours, x.max(axis=axes[0], keepdims=True))


def loops_of(program: Any) -> list[tirx.For]:
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(program["main"].body, ((tirx.For, loops.append),))
    return loops


def steps_of(program: Any) -> int:
    """How many times the blocks of a program run, all together."""

    def inside(statement: Any, times: int) -> int:
        if isinstance(statement, tirx.For):
            return inside(statement.body, times * int(statement.extent))
        if isinstance(statement, tirx.SeqStmt):
            return sum(inside(item, times) for item in statement)
        if hasattr(statement, "block") and str(statement.block.name_hint) == "root":
            return inside(statement.block.body, times)
        return times

    return inside(program["main"].body, 1)


@pytest.mark.parametrize(("axes", "width"), [([0, 1, 2, 3], 56), ([2, 3], 64)])
def test_no_vector_of_a_reduction_over_images_crosses_rows_that_lie_apart(
    prepared: Any, target: Any, axes: list[int], width: int
) -> None:
    """Rows of 56 elements: over all axes, a vector of 64 would be gathered element by element."""
    shape = (1, 8, 56, 56)
    (program,) = extract_programs(prepared(network("ReduceMean", shape, axes=axes), shape), target).values()
    schedule = default_rule(program)
    assert schedule is not None
    assert max(int(loop.extent) for loop in loops_of(schedule.mod) if int(loop.kind) == _VECTORIZED) == width


def test_a_split_of_rows_that_were_put_together_is_copied_without_conditions(tmp_path: Path, target: Any) -> None:
    """As in detectors: the maps of three sizes become rows, and boxes and classes are cut from them."""
    sizes = (12, 7, 4)
    value = helper.make_tensor_value_info
    shape = numpy_helper.from_array(np.array([1, 82, -1]), "shape")
    counts = numpy_helper.from_array(np.array([64, 18]), "counts")
    nodes = [helper.make_node("Reshape", [f"x{size}", "shape"], [f"r{size}"]) for size in sizes]
    nodes.append(helper.make_node("Concat", [f"r{size}" for size in sizes], ["rows"], axis=2))
    nodes.append(helper.make_node("Split", ["rows", "counts"], ["boxes", "classes"], axis=1))
    inputs = [value(f"x{size}", TensorProto.FLOAT, [1, 82, size, size]) for size in sizes]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("boxes", "classes")]
    graph = helper.make_graph(nodes, "network", inputs, outputs, [shape, counts])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(proto), str(tmp_path / "model.onnx"))
    lowered = prepare(read_model(tmp_path / "model.onnx", {}).module, target)
    (program,) = extract_programs(lowered, target).values()
    schedule = default_rule(program)
    assert schedule is not None
    loops = loops_of(schedule.mod)
    assert [int(loop.extent) for loop in loops if WHOLE_VECTORS in loop.annotations] == [209, 209]
    assert [int(loop.extent) for loop in loops if int(loop.kind) == _PARALLEL] == [64]
    machine = relax.VirtualMachine(compile_tuned(lowered, [program], {}, target), tvm.cpu())
    arrays = [_RNG.standard_normal((1, 82, size, size)).astype(np.float32) for size in sizes]
    boxes, classes = (item.numpy() for item in tensors_of(machine["main"](*map(tvm.runtime.tensor, arrays))))
    rows = np.concatenate([item.reshape(1, 82, -1) for item in arrays], axis=2)
    np.testing.assert_array_equal(boxes, rows[:, :64])
    np.testing.assert_array_equal(classes, rows[:, 64:])


def test_results_that_share_what_is_computed_have_no_rule() -> None:
    x = te.placeholder((64, 97), "float32", "x")
    both = te.compute(x.shape, lambda *place: tirx.exp(x[place]), "both")
    twice = te.compute(x.shape, lambda *place: both[place] * 2.0, "twice")
    half = te.compute(x.shape, lambda *place: both[place] / 2.0, "half")
    assert default_rule(tvm.IRModule({"main": te.create_prim_func([x, twice, half])})) is None


def test_a_softmax_over_many_classes_computes_no_sum_twice(prepared: Any, target: Any) -> None:
    shape = (1, 40, 1285)
    (program,) = extract_programs(prepared(network("Softmax", shape, axis=-1), shape), target).values()
    schedule = default_rule(program)
    assert schedule is not None
    assert steps_of(schedule.mod) < 1.2 * steps_of(program)
    kinds = {int(loop.kind) for loop in loops_of(schedule.mod)}
    assert {_PARALLEL, _VECTORIZED} <= kinds


def test_the_first_trials_of_a_task_have_its_default_schedule_among_them(prepared: Any, target: Any) -> None:
    shape = (1, 40, 1285)
    (program,) = extract_programs(prepared(network("Softmax", shape, axis=-1), shape), target).values()
    default = by_rule(program)
    assert default is not None
    knobs = Knobs(program, target)
    sampler = samplers.make("greedy", 0.0, True)
    for trials, there in (((), True), ((Trial("0" * 16, default.trace, [], (1.0,), None, "", 0, 0.0),), False)):
        proposal = propose(knobs, strategies.get("random"), sampler, Request(trials, (), 4, None, 1))
        assert (default.hash in [item.hash for item in proposal.candidates]) is there
        assert len(proposal.candidates) == 4


def test_a_default_schedule_that_the_search_proposes_too_is_proposed_once(
    prepared: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (1, 40, 1285)
    (program,) = extract_programs(prepared(network("Softmax", shape, axis=-1), shape), target).values()
    given = Knobs(program, target), strategies.get("random"), samplers.make("greedy", 0.0, True)
    request = Request((), (), 4, None, 1)
    first, *_ = propose(*given, request).candidates
    monkeypatch.setattr(proposing, "by_rule", lambda program: first)
    hashes = [item.hash for item in propose(*given, request).candidates]
    assert hashes.count(first.hash) == 1 and len(hashes) == 4


def test_a_product_is_left_to_the_search(matmul_of: Any) -> None:
    assert default_rule(matmul_of(96)) is None


def test_a_gather_of_rows_of_odd_length_is_compiled(tmp_path: Path, target: Any) -> None:
    """It holds indices of 64 bits, by which no loop is cut."""
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, [1, 30, 91]), value("i", TensorProto.INT64, [1, 30, 91])]
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)
    graph = helper.make_graph([node], "network", inputs, [value("y", TensorProto.FLOAT, [1, 30, 91])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, str(tmp_path / "model.onnx"))
    lowered = prepare(read_model(tmp_path / "model.onnx", {}).module, target)
    built = compile_tuned(lowered, extract_programs(lowered, target).values(), {}, target)
    x = _RNG.standard_normal((1, 30, 91)).astype(np.float32)
    index = _RNG.integers(0, 30, (1, 30, 91))
    ours = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(index)).numpy()
    np.testing.assert_array_equal(ours, np.take_along_axis(x, index, 1))


def test_a_formula_in_formulas_is_computed_in_steps() -> None:
    x = te.placeholder((8, 100), "float32", "x")
    soft = te.compute((8, 100), lambda i, j: te.log(te.exp(x[i, j]) + 1), "soft")
    mish = te.compute((8, 100), lambda i, j: te.tanh(soft[i, j]) * x[i, j], "mish")
    waves = te.compute((8, 100), lambda i, j: te.sin(mish[i, j]), "waves")
    schedule = default_rule(tvm.IRModule({"main": te.create_prim_func([x, waves])}))
    assert schedule is not None
    blocks = [schedule.get(ref) for ref in schedule.get_child_blocks(schedule.get_sblock("root"))]
    assert [str(block.name_hint) for block in blocks] == ["soft", "waves"]
