"""Operators keep their names through the passes, and a plan decides what is fused, how, and on how many threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.errors import BadInput
from autotune.network_plan.plan import Block, Plan
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.graph.blocks import ALGORITHMS, LAYOUTS, OPERATORS
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.search.tasks import extract_tasks


@pytest.fixture(scope="module")
def network() -> Any:
    """Two equal convolutions with ReLU, a sum with the first result, a mean, a product and a softmax."""

    def drawn(*shape: int) -> Any:
        return relax.const(np.random.default_rng(sum(shape)).uniform(-0.1, 0.1, shape).astype("float32"))

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 8, 8), "float32"))
    weight = drawn(16, 16, 3, 3)
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            first = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, weight, padding=1))))
            second = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(first, weight, padding=1))))
            mean = emit(relax.op.mean(emit(relax.op.add(first, second)), [2, 3]))
            product = emit(relax.op.matmul(mean, drawn(16, 48)))
            out = builder.emit_output(relax.op.nn.softmax(product, -1))
        builder.emit_func_output(out)
    return builder.get()


def planned(*blocks: Block) -> Plan:
    return Plan(blocks=blocks)


def block(*operators: str, **decisions: Any) -> Block:
    return Block(operators=operators, **decisions)


def kernels(prepared: Any) -> list[str]:
    return [" ".join(map(str, names)) for names in prepared["main"].attrs[OPERATORS]]


def tasks(prepared: Any, target: Any) -> dict[str, int]:
    return {task.spec.name: task.spec.weight for task in extract_tasks(prepared, target) if task.spec.tunable}


def test_each_kernel_has_the_operators_that_it_computes(network, target) -> None:
    prepared = prepare(network, target)
    assert kernels(prepared) == [
        "conv2d_1:layout_pack_1",
        "conv2d_1 relu_1",
        "conv2d_2 relu_2 add_1",
        "mean_1",
        "matmul_1:reshape_1",
        "matmul_1",
        "softmax_1:reshape_1",
        "softmax_1",
    ]
    assert dict(prepared["main"].attrs[ALGORITHMS]) == {
        "conv2d_1": "direct",
        "conv2d_2": "direct",
        "matmul_1": "packed",
    }


def test_operators_of_two_blocks_are_not_fused(network, target) -> None:
    prepared = prepare(network, target, plan=planned(block("conv2d_2"), block("relu_2", "add_1")))
    assert kernels(prepared)[2:4] == ["conv2d_2", "relu_2 add_1"]


def test_equal_blocks_are_one_task_and_fewer_threads_make_another(network, target) -> None:
    apart = (block("conv2d_1", "relu_1"), block("conv2d_2", "relu_2"), block("add_1"))
    assert tasks(prepare(network, target, plan=planned(*apart)), target)["conv2d_NCHWc_relu"] == 2
    limited = planned(block("conv2d_1", "relu_1", threads=1), *apart[1:])
    names = tasks(prepare(network, target, plan=limited), target)
    assert names["conv2d_NCHWc_relu"] == names["conv2d_NCHWc_relu_on_1"] == 1


def test_a_plan_that_says_what_the_rules_say_changes_no_task(network, target) -> None:
    prepared = prepare(network, target, winograd=True)
    algorithms = prepared["main"].attrs[ALGORITHMS]
    layouts = prepared["main"].attrs[LAYOUTS]
    blocks = [
        Block(
            operators=tuple(map(str, names)),
            threads=2,
            algorithm=next((str(algorithms[name]) for name in names if name in algorithms), None),  # type: ignore[arg-type]
            layout=next((str(layouts[name]) for name in names if name in layouts), None),
        )
        for names in prepared["main"].attrs[OPERATORS]
    ]
    again = prepare(network, target, plan=planned(*blocks))
    assert kernels(again) == kernels(prepared)
    assert tasks(again, target) == tasks(prepared, target)


def test_an_edited_plan_computes_the_same(network, target) -> None:
    edited = planned(
        block("conv2d_1", algorithm="winograd-4x4", threads=1),
        block("relu_1"),
        block("conv2d_2", layout="NCHW8c"),
        block("matmul_1", algorithm="plain", threads=1),
    )
    data = np.random.default_rng(0).uniform(-1, 1, (1, 16, 8, 8)).astype("float32")
    results = []
    for plan in (planned(), edited):
        prepared = prepare(network, target, plan=plan)
        machine = relax.VirtualMachine(compile_tuned(prepared, [], {}, target), tvm.cpu())
        results.append(machine["main"](tvm.runtime.tensor(data)).numpy())
    np.testing.assert_allclose(results[1], results[0], atol=1e-5)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            (block("conv2d_1", "relu_1"), block("conv2d_2", "relu_1:add_1", "mean_1")),
            r"block 2 \(conv2d_2 \+ relu_1:add_1 \+ mean_1\): mean_1 cannot be fused with conv2d_2",
        ),
        (
            (block("conv2d_3"),),
            r"\(conv2d_3\): the model has no operator conv2d_3; it has conv2d_1 to conv2d_2",
        ),
        ((block("lstm_1"),), r"the model has no operator lstm_1, and no lstm at all"),
        ((block("mean_1", algorithm="plain"),), r"algorithm = 'plain' is for convolutions and products"),
        ((block("conv2d_1", algorithm="rows"),), r"block 1 \(conv2d_1\): rows is for images"),
        ((block("matmul_1", algorithm="direct"),), r"direct is for convolutions; a product is packed or plain"),
        ((block("conv2d_1", layout="NCHW32c"),), r"layout = 'NCHW32c' does not fit 16 channels"),
        ((block("softmax_1", layout="NCHW8c"),), r"layout = 'NCHW8c' is for convolutions"),
        ((block("conv2d_1", threads=3),), r"threads = 3; the target has 2"),
        ((block("conv2d_2"), block("add_1")), r"relu_2 fuses it with add_1 of another block"),
    ],
)
def test_what_a_plan_cannot_have_is_named_with_its_block(network, target, blocks, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        prepare(network, target, plan=planned(*blocks))
