"""Winograd's algorithm computes the convolution, with what is fused to it, and is chosen where it pays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto

from autotune import strategies
from autotune.network_plan.plan import Block, Plan
from autotune.strategies import samplers
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.kernels.build_kernel import build_candidate
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.packing.blocked_images import pack_layouts
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.tasks import extract_tasks


def programs(path: Path, target: Any) -> list[Any]:
    prepared = prepare(read_model(path, {}).module, target, winograd=True)
    return [task for task in extract_tasks(prepared, target) if task.spec.name.startswith("winograd")]


@pytest.mark.parametrize(
    ("shape", "outputs", "pads"),
    [
        ((1, 96, 21, 18), 64, [1, 1, 1, 1]),  # tiles that stick out
        ((2, 32, 16, 16), 48, [1, 1, 1, 1]),  # two images
        ((1, 32, 20, 20), 40, [0, 2, 1, 0]),  # one more side padded than another, and lanes that only fill up
        ((1, 60, 20, 20), 64, [0, 0, 0, 0]),
    ],
)
def test_a_convolution_by_winograd_computes_what_onnx_runtime_computes(
    convolution, tmp_path, target, shape, outputs, pads
):
    path = convolution(tmp_path / "m.onnx", shape, outputs, pads=pads)
    assert_same(path, prepare(read_model(path, {}).module, target, winograd=True), target, shape, 1e-4)


def assert_same(path, prepared, target, shape, tolerance):
    """A module computes by Winograd's algorithm what ONNX Runtime computes."""
    tasks = extract_tasks(prepared, target)
    assert any(task.spec.name.startswith("winograd") for task in tasks)
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    executable = compile_tuned(prepared, [task.program for task in tasks], {}, target)
    output = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data))
    (expected,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": data})
    np.testing.assert_allclose(output.numpy(), expected, atol=tolerance)


def test_a_plan_chooses_smaller_tiles_which_round_less(convolution, tmp_path, target):
    shape = (1, 32, 11, 14)
    path = convolution(tmp_path / "m.onnx", shape, 16)
    plan = Plan(blocks=(Block(operators=("conv2d_1",), algorithm="winograd-2x2"),))
    assert_same(path, prepare(read_model(path, {}).module, target, plan=plan), target, shape, 1e-5)


def test_a_candidate_survives_being_written_and_read(convolution, tmp_path, target):
    (task,) = programs(convolution(tmp_path / "m.onnx", (1, 48, 22, 22), 48, tail=True), target)
    assert_candidates_agree(task.program, target, tmp_path / "c.so")


def assert_candidates_agree(program: Any, target: Any, library: Path) -> None:
    """Three candidates are valid, can be written down, and compute the same."""
    request = Request((), (), 3, None, 1)
    proposed = propose(Knobs(program, target), strategies.get("random"), samplers.make("greedy", 0.0, True), request)
    assert len(proposed.candidates) == 3 and not proposed.invalid
    results = []
    for item in proposed.candidates:
        assert json.loads(json.dumps(item.trace)) == item.trace
        build_candidate(item, program, target, library)
        results.append(outputs_of(library, program))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results[0], results[2], rtol=1e-4, atol=1e-4)


def last_block(program: Any, target: Any) -> Any:
    """What the first sketch of a program computes last."""
    (schedule, *_) = Knobs(program, target).context.generate_design_space()
    return [schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))][-1]


def outputs_of(library: Path, program: Any) -> Any:
    """What a library makes of the same random arguments."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    draw = np.random.default_rng(2).standard_normal
    shapes = [[int(dim) for dim in item.shape] for item in ArgInfo.from_entry_func(program, remove_preproc=True)]
    tensors = [tvm.runtime.tensor(draw(shape).astype(np.float32)) for shape in shapes]
    tvm.runtime.load_module(str(library))["main"](*tensors)
    return tensors[-1].numpy()


def silu(path: Path) -> Path:
    """The model with x * sigmoid(x) after its convolution."""
    model = onnx.load(str(path))
    model.graph.node.append(onnx.helper.make_node("Sigmoid", ["c"], ["s"]))
    model.graph.node.append(onnx.helper.make_node("Mul", ["c", "s"], ["y"]))
    model.graph.output[0].name = "y"
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(("tail", "last"), [("relu", "T.max"), ("silu", "T.sigmoid")])
def test_what_is_fused_to_a_convolution_is_computed_where_its_results_are_written(
    convolution, tmp_path, target, tail, last
):
    path = convolution(tmp_path / "m.onnx", (1, 32, 24, 24), 32, tail=tail == "relu")
    (task,) = programs(silu(path) if tail == "silu" else path, target)
    block = last_block(task.program, target)
    assert block.name_hint == "winograd_output"
    assert last in block.script()


@pytest.mark.parametrize(
    ("shape", "outputs", "attributes"),
    [
        ((1, 64, 28, 28), 64, {"strides": [2, 2]}),
        ((1, 64, 28, 28), 64, {"dilations": [2, 2]}),
        ((1, 64, 28, 28), 64, {"group": 2}),
        ((1, 64, 28, 28), 64, {"group": 64}),
        ((1, 64, 28, 28), 64, {"kernel": 5}),
        ((1, 64, 28, 28), 64, {"element": TensorProto.DOUBLE}),
        ((1, 3, 112, 112), 64, {}),  # hardly any work for what comes before and after
        ((1, 64, 1024, 1024), 64, {}),  # a gigabyte between the transforms
        ((1, 96, 7, 7), 96, {}),  # four times the weights to read for a few pixels
    ],
)
def test_convolutions_that_winograd_cannot_compute_or_make_faster_are_left_as_they_are(
    convolution, tmp_path, target, shape, outputs, attributes
):
    assert not programs(convolution(tmp_path / "m.onnx", shape, outputs, **attributes), target)


def test_with_wider_vectors_more_weights_pay_less(convolution, tmp_path, target, wide_target):
    path = convolution(tmp_path / "m.onnx", (1, 256, 10, 10), 256)
    assert len(programs(path, target)) == 1
    assert not programs(path, wide_target)


def test_nothing_is_computed_so_unless_asked_for(convolution, tmp_path, target):
    path = convolution(tmp_path / "m.onnx", (1, 64, 28, 28), 64)
    assert len(programs(path, target)) == 1
    module = read_model(path, {}).module
    for other in (prepare(module, target), pack_layouts(module)):
        assert "winograd" not in other.script(show_meta=False)
