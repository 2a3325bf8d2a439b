"""Kernels are simulated on several cores: a free core takes the next piece, of any kernel beside others."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from autotune.plans.plan import Block, BlockFacts, TensorFacts


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("simulate_cores")


def test_a_large_kernel_is_shared_by_all_cores(script: ModuleType) -> None:
    assert script.simulated_us([800.0], 8, 2.0) == pytest.approx(100.0)


def test_a_small_kernel_is_not_cut_into_pieces_that_are_too_short(script: ModuleType) -> None:
    assert script.simulated_us([6.0], 8, 2.0) == pytest.approx(2.0)


def test_small_kernels_beside_each_other_fill_more_cores(script: ModuleType) -> None:
    apart = script.simulated_us([6.0], 8, 2.0) + script.simulated_us([8.0], 8, 2.0)
    assert script.simulated_us([6.0, 8.0], 8, 2.0) == pytest.approx(apart / 2)


def test_a_group_ends_before_the_next_block_that_is_beside_none(script: ModuleType) -> None:
    blocks = [Block(operators=(name,), beside=beside) for name, beside in (("a", False), ("b", True), ("c", False))]
    groups = [[block.operators[0] for block in group] for group in script.groups(blocks)]
    assert groups == [["a", "b"], ["c"]]


def test_a_kernel_without_a_task_is_as_long_as_what_it_moves(script: ModuleType) -> None:
    data = TensorFacts("buffer0", "float32", (1000,), bytes=4000)
    copy = TensorFacts("buffer1", "float32", (1000,), bytes=4000, offset=4032)
    assert script.work_us(Block(operators=("a",), facts=BlockFacts(reads=(data,), writes=(copy,)))) == 0.4
    assert script.work_us(Block(operators=("a",), facts=BlockFacts(best_us=7.0))) == 7.0
