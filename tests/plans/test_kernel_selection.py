"""Of all networks that can be made of kernels, the one that takes the least time is chosen."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from autotune.plans.exploration import Alternatives, Kernel, base_layouts_only, plan_of
from autotune.plans.kernel_selection import choose, contenders
from autotune.plans.plan import Block, Plan

WIDE = "1x4x16"
NARROW = "1x8x8"


def kernel(operators: str, reads: str, writes: str, task: str = "", **rest: Any) -> Kernel:
    return Kernel(operators=tuple(operators.split()), reads=tuple(reads.split()), writes=(writes,), task=task, **rest)


def convolution(number: int, read: str, written: str) -> Kernel:
    before = [f"conv_{number - 1}@{read}"] if number > 1 else []
    return Kernel(
        operators=(f"conv_{number}",),
        reads=tuple(before),
        writes=(f"conv_{number}@{written}",),
        task=f"{number} {read} {written}",
        layout="NCHW16c" if written == WIDE else "NCHW8c",
    )


CHAIN = Alternatives(
    kernels=tuple(
        convolution(number, read, written)
        for read, written in [(WIDE, WIDE), *list(product((WIDE, NARROW), repeat=2))[1:]]
        for number in (1, 2, 3)
        if not (number == 1 and read == NARROW)
    ),
    base=(0, 1, 2),
    outputs=(f"conv_3@{WIDE}",),
)


def times() -> dict[str, float]:
    return {item.task: 10.0 for item in CHAIN.kernels}


def chosen_tasks(alternatives: Alternatives, times: dict[str, float]) -> list[str]:
    chosen = choose(alternatives, times)
    assert chosen is not None
    return sorted(alternatives.kernels[number].task for number in chosen)


def test_a_layout_is_chosen_for_all_that_share_it_where_all_are_faster_together() -> None:
    assert choose(CHAIN, times()) == CHAIN.base
    fast = {f"1 {WIDE} {NARROW}": 8.0, f"2 {NARROW} {NARROW}": 7.0, f"3 {NARROW} {WIDE}": 9.0}
    assert chosen_tasks(CHAIN, times() | fast) == sorted(fast)
    slow = {f"1 {WIDE} {NARROW}": 15.0, f"2 {NARROW} {NARROW}": 12.0, f"2 {NARROW} {WIDE}": 6.0}
    assert chosen_tasks(CHAIN, times() | slow) == sorted(CHAIN.kernels[number].task for number in CHAIN.base)


def test_a_transform_is_chosen_where_it_pays() -> None:
    repack = kernel("conv_2:layout_repack_1", f"conv_1@{WIDE}", f"conv_1@{NARROW}", "repack")
    some = Alternatives(kernels=(*CHAIN.kernels, repack), base=CHAIN.base, outputs=CHAIN.outputs)
    fast = times() | {f"2 {NARROW} {WIDE}": 5.0, f"1 {WIDE} {NARROW}": 40.0}
    assert "repack" in chosen_tasks(some, fast | {"repack": 4.0})
    assert "repack" not in chosen_tasks(some, fast | {"repack": 6.0})


def test_two_transforms_do_not_feed_each_other() -> None:
    kernels = (
        kernel("conv_1", "", f"conv_1@{WIDE}", "slow"),
        kernel("conv_2", f"conv_1@{NARROW}", f"conv_2@{NARROW}", "next"),
        kernel("conv_2:layout_repack_1", f"conv_1@{WIDE}", f"conv_1@{NARROW}", "there"),
        kernel("conv_3:layout_repack_1", f"conv_1@{NARROW}", f"conv_1@{WIDE}", "back"),
    )
    some = Alternatives(kernels=kernels, base=(0, 1, 2), outputs=(f"conv_2@{NARROW}",))
    assert chosen_tasks(some, dict.fromkeys(("slow", "next", "there", "back"), 1.0)) == ["next", "slow", "there"]


SPLIT = Alternatives(
    kernels=(
        kernel("conv_1 relu_1", "", "relu_1@8", "fused", algorithm="direct"),
        kernel("conv_1", "", "conv_1@8", "alone", algorithm="direct"),
        kernel("relu_1", "conv_1@8", "relu_1@8", "rest"),
        kernel("conv_1 relu_1", "", "relu_1@8", "winograd", algorithm="winograd-4x4"),
    ),
    base=(0,),
    outputs=("relu_1@8",),
)


@pytest.mark.parametrize(
    ("alone", "rest", "winograd", "tasks"),
    [(5.0, 4.0, 11.0, ["alone", "rest"]), (5.0, 6.0, 11.0, ["fused"]), (5.0, 4.0, 8.0, ["winograd"])],
)
def test_an_operator_is_computed_by_one_kernel(alone: float, rest: float, winograd: float, tasks: list[str]) -> None:
    given = {"fused": 10.0, "alone": alone, "rest": rest, "winograd": winograd}
    assert chosen_tasks(SPLIT, given) == tasks


def test_what_has_no_time_is_not_chosen_and_times_that_are_nearly_equal_leave_the_base() -> None:
    assert chosen_tasks(SPLIT, {"fused": 10.0, "alone": 1.0}) == ["fused"]
    assert choose(SPLIT, {"rest": 1.0}) is None
    assert chosen_tasks(SPLIT, {"fused": 10.0, "winograd": 9.9}) == ["fused"]
    assert chosen_tasks(SPLIT, {"fused": 10.0, "winograd": 9.7}) == ["winograd"]


def test_what_a_kernel_is_assumed_to_take_counts() -> None:
    kernels = (kernel("mean_1", "", "mean_1@8", assumed_us=3.0), kernel("mean_1", "", "mean_1@8", "tuned"))
    some = Alternatives(kernels=kernels, base=(0,), outputs=("mean_1@8",))
    assert chosen_tasks(some, {"tuned": 2.0}) == ["tuned"]
    assert chosen_tasks(some, {"tuned": 4.0}) == [""]


def test_a_contender_is_a_task_that_would_be_chosen_were_it_a_little_faster() -> None:
    given = {"fused": 10.0, "alone": 8.0, "rest": 8.0, "winograd": 11.0}
    chosen = choose(SPLIT, given)
    assert chosen is not None
    assert contenders(SPLIT, given, chosen, 0.05) == {}
    assert contenders(SPLIT, given, chosen, 0.15) == {"winograd": 1}


def test_the_plan_says_what_differs_from_the_base_and_what_was_given() -> None:
    chosen = choose(SPLIT, {"fused": 10.0, "winograd": 8.0})
    assert chosen is not None
    blocks = (Block(operators=("conv_1", "relu_1"), algorithm="winograd-4x4"),)
    assert plan_of(SPLIT, chosen) == Plan(blocks=blocks)
    assert plan_of(SPLIT, SPLIT.base) == Plan()
    given = Plan(blocks=(Block(operators=("conv_2",), threads=1),))
    some = Alternatives(kernels=CHAIN.kernels, base=CHAIN.base, outputs=CHAIN.outputs, given=given)
    assert plan_of(some, some.base) == given


def test_without_other_layouts_there_are_those_of_the_base() -> None:
    left = base_layouts_only(CHAIN)
    assert [item.task for item in left.kernels] == [f"{number} {WIDE} {WIDE}" for number in (1, 2, 3)]
    assert base_layouts_only(SPLIT) == SPLIT
