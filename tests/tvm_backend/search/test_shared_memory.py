"""Shared memory: 48 KiB where a kernel declares it, and what the architecture has where the launch asks for it."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.cuda.multiprocessors import max_shared_default
from autotune.tvm_backend.search.shared_memory import postprocessors

from ...cuda_stand_in import StandIn, compile_libraries

KIB = 1 << 10
LAUNCH = """
import sys
from autotune.tvm_backend.load import load_tvm

load_tvm("cuda")
import tvm  # now, for PyTorch would bring a runtime of CUDA that is newer than the stand-in

module = tvm.runtime.load_module(sys.argv[1])
module["main"](*(tvm.runtime.empty((int(sys.argv[2]),), "float32", tvm.cuda(0)) for _ in range(2)))
tvm.cuda(0).sync()
print("launched")
"""


@pytest.fixture(scope="module", autouse=True)
def _tvm():
    from autotune.tvm_backend.load import load_tvm

    load_tvm("cuda")


def gpu(arch="sm_90", **limits):
    from autotune.tvm_backend.target import resolve_target, tvm_target

    return tvm_target({**resolve_target(f'{{"kind": "cuda", "arch": "{arch}"}}', 1).description, **limits})


def copied(elements, scope):
    """A schedule of one block that copies its floats to shared memory first."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((elements,), "float32", name="a")
    b = te.compute((elements,), lambda i: a[elements - 1 - i] + a[i], name="b")
    function = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    schedule = Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("b")
    outer, inner = schedule.split(schedule.get_loops(block)[0], [None, 32])
    one, _ = schedule.split(outer, [1, None])
    schedule.bind(one, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    copy = schedule.cache_read(block, 0, scope)
    schedule.compute_at(copy, one)
    schedule.bind(schedule.split(schedule.get_loops(copy)[-1], [None, 32])[1], "threadIdx.x")
    return schedule


def accepted(schedule, target):
    schedule.enter_postproc()
    return all(accepts(schedule) for accepts in postprocessors(schedule.mod, target))


@pytest.mark.parametrize(("arch", "kib"), [("sm_70", 48), ("sm_75", 63), ("sm_80", 163), ("sm_89", 99), ("sm_90", 227)])
def test_a_launch_may_give_what_the_architecture_has(arch, kib):
    assert max_shared_default(gpu(arch)) == kib * KIB
    assert max_shared_default(gpu(arch, max_shared_memory_per_block=4096)) == 4096


@pytest.mark.parametrize(
    ("scope", "kib", "fine"),
    [("shared", 40, True), ("shared", 60, False), ("shared.dyn", 60, True), ("shared.dyn", 200, True)],
)
def test_what_is_declared_has_a_lower_limit_than_what_is_asked_for(scope, kib, fine):
    assert accepted(copied(kib * KIB // 4, scope), gpu()) is fine


def test_no_architecture_gives_more_than_it_has():
    assert accepted(copied(100 * KIB // 4, "shared.dyn"), gpu("sm_80"))
    assert not accepted(copied(100 * KIB // 4, "shared.dyn"), gpu("sm_86"))
    assert not accepted(copied(228 * KIB // 4, "shared.dyn"), gpu("sm_90"))


@pytest.mark.slow
@pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")
def test_the_runtime_asks_for_what_a_launch_gives(made_once, tmp_path):
    """The stand-in refuses launches with more than 48 KiB that were not asked for, as a driver does."""
    from autotune.tvm_backend.kernels.build_kernel import build_library

    elements = 60 * KIB // 4
    build_library(copied(elements, "shared.dyn").mod, gpu(), tmp_path / "kernel.so")
    stand_in = StandIn.make(made_once("stand_in", compile_libraries), tmp_path / "gpus")
    done = stand_in.python(LAUNCH, tmp_path / "kernel.so", elements)
    assert done.stdout.strip() == "launched", done.stderr
