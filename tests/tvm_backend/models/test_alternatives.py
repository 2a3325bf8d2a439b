"""The kernels that a network may have: each plan that is put together of them can be followed, and makes just them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tvm import relax

from autotune.plans.exploration import Alternatives, plan_of
from autotune.plans.kernel_selection import choose
from autotune.plans.plan import NOTHING, Block, Plan
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.alternatives import Explored, explore
from autotune.tvm_backend.search.tasks import task_weights

MANY = 1000


@pytest.fixture(scope="module")
def network() -> Any:
    """A residual block of 3x3 convolutions, one of 1x1 after it, a mean, and a product."""
    draw = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return relax.const(draw.uniform(-0.1, 0.1, shape).astype("float32"))

    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType((1, 16, 12, 12), "float32"))

    def convolved(data: Any, outputs: int, size: int) -> Any:
        inputs = int(data.ty.shape.values[1])
        y = emit(relax.op.nn.conv2d(data, drawn(outputs, inputs, size, size), padding=size // 2))
        return emit(relax.op.nn.relu(emit(relax.op.add(y, drawn(1, outputs, 1, 1)))))

    with builder.function("main", [x]):
        with builder.dataflow():
            first = convolved(x, 32, 3)
            second = convolved(first, 32, 3)
            third = convolved(emit(relax.op.add(first, second)), 16, 1)
            product = emit(relax.op.matmul(emit(relax.op.mean(third, [2, 3])), drawn(16, 32)))
            out = builder.emit_output(product)
        builder.emit_func_output(out)
    return builder.get()


@pytest.fixture(scope="module")
def by_plan(network: Any, target: Any) -> Any:
    return lambda plan: prepare(network, target, winograd=True, plan=plan)


@pytest.fixture(scope="module")
def explored(by_plan: Any, target: Any) -> Explored:
    return explore(by_plan, NOTHING, target, MANY)


def decisions(alternatives: Alternatives, operator: str) -> set[tuple[Any, ...]]:
    kernels = [kernel for kernel in alternatives.kernels if operator in kernel.operators]
    return {(kernel.algorithm, kernel.layout, kernel.threads) for kernel in kernels}


def test_there_are_all_algorithms_layouts_and_numbers_of_threads(explored: Explored) -> None:
    wide = "NCHW16c"
    expected = {("direct", wide, None), ("winograd-2x2", wide, None), ("winograd-4x4", wide, None)}
    expected |= {("direct", wide, 1)}
    assert decisions(explored.alternatives, "conv2d_1") >= expected
    assert {layout for _, layout, _ in decisions(explored.alternatives, "conv2d_2")} == {"NCHW8c", "NCHW16c"}
    assert {algorithm for algorithm, _, _ in decisions(explored.alternatives, "matmul_1")} == {"packed", "plain"}


def test_there_are_kernels_that_are_split(explored: Explored) -> None:
    named = [kernel.named for kernel in explored.alternatives.kernels]
    assert ("conv2d_1", "add_1", "relu_1") in named and ("conv2d_1",) in named and ("add_1", "relu_1") in named


def test_tasks_of_alternatives_have_no_weight_yet(explored: Explored, by_plan: Any, target: Any) -> None:
    weights = {task.spec.hash: task.spec.weight for task in explored.tasks}
    base = task_weights(by_plan(NOTHING), target)
    assert {hash: weight for hash, weight in weights.items() if weight} == base
    assert len(weights) > 3 * len(base)


@pytest.mark.parametrize("seed", range(3))
def test_a_choice_is_a_plan_that_makes_just_its_kernels(
    explored: Explored, by_plan: Any, target: Any, seed: int
) -> None:
    draw = random.Random(seed)
    times = {task.spec.hash: draw.uniform(5, 15) for task in explored.tasks if task.spec.tunable}
    chosen = choose(explored.alternatives, times)
    assert chosen is not None
    wanted = [explored.alternatives.kernels[number].task for number in chosen]
    made = task_weights(by_plan(plan_of(explored.alternatives, chosen)), target)
    assert made == {task: wanted.count(task) for task in wanted if task}


def test_what_a_user_has_decided_stays(by_plan: Any, target: Any) -> None:
    given = Plan(
        blocks=(
            Block(operators=("conv2d_1", "add_1", "relu_1"), algorithm="winograd-2x2"),
            Block(operators=("conv2d_3",), threads=1),
        )
    )
    alternatives = explore(by_plan, given, target, MANY).alternatives
    assert {algorithm for algorithm, _, _ in decisions(alternatives, "conv2d_1")} == {"winograd-2x2"}
    assert {threads for _, _, threads in decisions(alternatives, "conv2d_3")} == {1}
    assert len(decisions(alternatives, "conv2d_2")) > 3


def test_only_the_most_promising_are_kept(by_plan: Any, target: Any, explored: Explored) -> None:
    few = explore(by_plan, NOTHING, target, 3)
    base = sum(task.spec.weight > 0 for task in explored.tasks)
    assert len(few.tasks) == base + 3
    kept = {task.spec.hash for task in few.tasks}
    assert all(not kernel.task or kernel.task in kept for kernel in few.alternatives.kernels)


@pytest.mark.parametrize(
    ("winograd", "algorithms"), [(False, {"direct"}), (True, {"direct", "winograd-2x2", "winograd-4x4"})]
)
def test_winograd_is_an_alternative_where_it_is_allowed(target: Any, winograd: bool, algorithms: set[str]) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 12, 12), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            weights = relax.const(np.ones((32, 16, 3, 3), "float32"))
            out = builder.emit_output(relax.op.nn.conv2d(x, weights, padding=1))
        builder.emit_func_output(out)
    by_plan = lambda plan: prepare(builder.get(), target, winograd=winograd, plan=plan)  # noqa: E731
    alternatives = explore(by_plan, NOTHING, target, MANY).alternatives
    assert {algorithm for algorithm, _, _ in decisions(alternatives, "conv2d_1")} == algorithms
