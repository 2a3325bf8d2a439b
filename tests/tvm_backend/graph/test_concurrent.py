"""Kernels that a plan runs beside each other become one kernel, which computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.errors import BadInput
from autotune.network_plan.plan import Block, Plan
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.export.describe import plan_of
from autotune.tvm_backend.export.model_facts import kernel_work
from autotune.tvm_backend.lowering import finish, prepare
from autotune.tvm_backend.search.tasks import extract
from autotune.tvm_backend.threads.concurrent_loops import JOINED

from ..relax_functions import function

IMAGE = (1, 16, 10, 10)
BESIDE = Plan(blocks=(Block(operators=("conv2d_1",)), Block(operators=("conv2d_2",), beside=True)))


@pytest.fixture(scope="module")
def branches() -> Any:
    """Two convolutions of one image, and one of both results."""
    draw = np.random.default_rng(0)

    def build(emit: Any, x: Any) -> Any:
        def convolution(data: Any, size: int) -> Any:
            inputs = int(data.ty.shape.values[1])
            weight = relax.const(draw.standard_normal((16, inputs, size, size)).astype("float32"))
            return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(data, weight, padding=size // 2))))

        return convolution(emit(relax.op.concat([convolution(x, 1), convolution(x, 3)], 1)), 3)

    return function(build, IMAGE)


@pytest.fixture(scope="module")
def beside(branches, target) -> Any:
    """The first two convolutions beside each other."""
    return prepare(branches, target, plan=BESIDE)


@pytest.fixture(scope="module")
def apart(branches, target) -> Any:
    """One convolution after the other."""
    return prepare(branches, target)


def outputs(module: Any, target: Any) -> Any:
    machine = relax.VirtualMachine(compile_tuned(module, [], {}, target), tvm.cpu())
    image = np.random.default_rng(1).standard_normal(IMAGE).astype("float32")
    return machine["main"](tvm.runtime.tensor(image)).numpy()


def joined_kernels(module: Any, target: Any) -> dict[str, list[list[Any]]]:
    programs = finish(module, target).functions.items()
    return {name.name_hint: function.attrs[JOINED] for name, function in programs if JOINED in (function.attrs or {})}


def test_kernels_beside_each_other_are_one_kernel_which_computes_the_same(beside, apart, target) -> None:
    (members,) = joined_kernels(beside, target).values()
    assert [str(name).startswith("fused_conv2d") for name, _ in members] == [True, True]
    assert not joined_kernels(apart, target)
    np.testing.assert_array_equal(outputs(beside, target), outputs(apart, target))


def test_they_are_tuned_as_if_they_were_apart(beside, apart, target) -> None:
    together, one_by_one = (
        {hash: item.weight for hash, item in extract(module, target).items()} for module in (beside, apart)
    )
    assert together == one_by_one and len(one_by_one) >= 3


def test_the_plan_of_the_network_has_them_as_blocks(branches, beside, target) -> None:
    plan = plan_of(beside, target, {}, {}, "")
    assert [block.operators[0] for block in plan.blocks if block.beside] == ["conv2d_2"]
    one, other = (block.facts for block in plan.blocks if block.operators[0] in ("conv2d_1", "conv2d_2"))
    assert one is not None and other is not None
    assert one.reads == other.reads
    assert one.writes[0].offset != other.writes[0].offset
    again = plan_of(prepare(branches, target, plan=plan.decisions()), target, {}, {}, "")
    assert again == plan, "a plan that was printed is followed"


def test_the_work_of_a_joined_kernel_is_that_of_its_kernels(beside, target) -> None:
    ((name, members),) = joined_kernels(beside, target).items()
    work = kernel_work(beside, {}, target)
    assert work[name] == tuple(work[str(member)][0] for member, _ in members)
    assert len(members) > 1 and all(part.gflop > 0 for part in work[name])


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (["conv2d_2", "conv2d_3"], r"block 2 \(conv2d_3\): it cannot run beside a block whose result it needs"),
        (["conv2d_1", "relu_1"], r"block 2 \(relu_1\): it cannot run beside"),
        (["conv2d_1", "conv2d_3", "conv2d_2"], r"block 2 \(conv2d_3\)"),  # it needs the third
    ],
)
def test_blocks_that_need_each_other_are_refused(branches, target, operators, message) -> None:
    first, second, *others = operators
    blocks = [Block(operators=(first,)), Block(operators=(second,), beside=True)]
    plan = Plan(blocks=(*blocks, *(Block(operators=(name,)) for name in others)))
    with pytest.raises(BadInput, match=message):
        prepare(branches, target, plan=plan)


def test_a_gpu_runs_nothing_beside_each_other(branches) -> None:
    gpu = tvm.target.Target("nvidia/nvidia-t4")
    with pytest.raises(BadInput, match="only kernels for CPUs run beside each other"):
        prepare(branches, gpu, plan=BESIDE)
