"""Kernels run in the order that needs the least memory, or in that of a plan."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax

from autotune.errors import BadInput
from autotune.network_plan.plan import Block, Plan
from autotune.tvm_backend.graph.blocks import OPERATORS
from autotune.tvm_backend.graph.run_order import MIN_MEMORY, order_kernels
from autotune.tvm_backend.lowering import prepare

from ..relax_functions import function

SMALL = 4 * 64  # bytes
LARGE = 64 * SMALL


@pytest.fixture(scope="module")
def branches() -> Any:
    """Two results that are small, each of a large product of the input with itself; the second product comes early."""

    def build(emit: Any, x: Any) -> Any:
        row = emit(relax.op.permute_dims(x))
        first = emit(relax.op.matmul(x, row))
        second = emit(relax.op.matmul(emit(relax.op.nn.relu(x)), row))
        return relax.op.matmul(*(emit(relax.op.sum(item, 1)) for item in (first, second)))

    return function(build, (64, 1))


def order(prepared: Any) -> list[str]:
    return [str(names[-1]) for names in prepared["main"].attrs[OPERATORS]]


def test_a_large_result_is_used_before_another_one_is_computed(branches, target) -> None:
    prepared = prepare(branches, target)
    names = order(prepared)
    assert names.index("matmul_2") < names.index("sum_2") < names.index("matmul_1")
    assert prepared["main"].attrs[MIN_MEMORY] < 2 * LARGE


def test_a_result_of_several_that_was_read_is_not_kept_to_the_end(target) -> None:
    def build(emit: Any, x: Any) -> Any:
        halves = emit(relax.op.split(x, 2, 1))
        wide = emit(relax.op.matmul(halves[0], emit(relax.op.permute_dims(halves[1]))))
        narrow = emit(relax.op.sum(wide, 1))
        return relax.op.matmul(relax.op.expand_dims(narrow, 1), relax.op.expand_dims(narrow, 0))

    prepared = prepare(function(build, (64, 2)), target)
    both = 2 * SMALL  # as much as the input, which is there all the time
    assert prepared["main"].attrs[MIN_MEMORY] == both + both + LARGE


def test_a_plan_decides_the_order(branches, target) -> None:
    plan = Plan(blocks=(Block(operators=("matmul_2",)), Block(operators=("matmul_1",)), Block(operators=("sum_2",))))
    names = order(prepare(branches, target, plan=plan))
    assert names.index("matmul_2") < names.index("matmul_1") < names.index("sum_2")


def test_a_block_cannot_come_before_what_it_reads(branches, target) -> None:
    plan = Plan(blocks=(Block(operators=("sum_2",)), Block(operators=("sum_1",)), Block(operators=("matmul_2",))))
    message = r"block 1 \(sum_2\): it needs a result of block 3 \(matmul_2\), which comes after it"
    with pytest.raises(BadInput, match=message):
        prepare(branches, target, plan=plan)


def test_more_memory_than_is_allowed_is_refused(branches, target) -> None:
    prepared = prepare(branches, target)
    least = int(prepared["main"].attrs[MIN_MEMORY]) / 1e6
    order_kernels(prepared, Plan(), memory_mb=least)
    message = r"^the model's activations need 0.01\d+ MB, more than --memory 0.01MB; in any order .* at least$"
    with pytest.raises(BadInput, match=message):
        prepare(branches, target, memory_mb=0.01)
