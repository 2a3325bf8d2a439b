"""The plan of a model says what each kernel computes and where its tensors lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.network_plan.plan import Memory, Plan
from autotune.tvm_backend.export.describe import plan_of
from autotune.tvm_backend.search.tasks import extract_tasks


@pytest.fixture(scope="module")
def plan(target: Any) -> Plan:
    """The plan of a convolution with a ReLU on one thread, of which the best time is known, and a reshape."""
    from tvm import relax

    from autotune.network_plan.plan import Block
    from autotune.tvm_backend.lowering import prepare

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 8, 8), "float32"))
    weight = relax.const(np.ones((32, 16, 3, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            image = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, weight, padding=1))))
            out = builder.emit_output(relax.op.reshape(image, (1, 2048)))
        builder.emit_func_output(out)
    decided = Plan(blocks=(Block(operators=("conv2d_1",), threads=1),))
    prepared = prepare(builder.get(), target, plan=decided)
    names = {task.spec.hash: task.spec.name for task in extract_tasks(prepared, target)}
    return plan_of(prepared, target, names, {"conv2d_NCHWc_relu_on_1": 12.5}, "net.onnx")


def test_each_kernel_is_a_block_in_order(plan: Plan) -> None:
    assert [block.operators[-1] for block in plan.blocks] == ["conv2d_1:layout_pack_1", "relu_1", "reshape_1"]
    assert [block.threads for block in plan.blocks] == [2, 1, 2]
    assert [block.algorithm for block in plan.blocks] == [None, "direct", None]


def test_a_block_has_its_task_with_the_best_time(plan: Plan) -> None:
    facts = plan.blocks[1].facts
    assert facts is not None
    assert (facts.task, facts.best_us) == ("conv2d_NCHWc_relu_on_1", 12.5)


def test_tensors_have_their_layouts_and_places(plan: Plan) -> None:
    packed, convolution, unpacked = (block.facts for block in plan.blocks)
    assert packed and convolution and unpacked
    assert packed.reads[0].name == "input0"
    assert [item.layout for item in (*convolution.reads, *convolution.weights, *convolution.writes)] == [
        "NCHW16c",
        "OIHW16i16o",
        "NCHW16c",
    ]
    assert packed.writes == convolution.reads
    assert convolution.writes[0].bytes == 4 * 32 * 8 * 8
    image = 4 * 16 * 8 * 8
    everything = 2 * image + 4 * image
    most = image + 4 * image
    assert plan.memory == Memory(arena=most, library=most, sum=everything, least=most)
