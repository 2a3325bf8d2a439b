"""A schedule that makes a program call something is refused before it is compiled."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule, TensorIntrin

from autotune.errors import DamagedFile
from autotune.tvm_backend.integer import intrinsics
from autotune.tvm_backend.kernels.calls import check_calls, outside_calls
from autotune.tvm_backend.sanitize import check_trace

NO_TRACE = [[], []]


def program(result: Any, *arguments: Any) -> Any:
    return tvm.IRModule({"main": te.create_prim_func([*arguments, result])})


@pytest.fixture
def doubled() -> Any:
    data = te.placeholder((16,), name="data")
    return program(te.compute((16,), lambda i: data[i] * 2.0, name="doubled"), data)


@pytest.fixture
def calling() -> Any:
    data = te.placeholder((16,), name="data")
    status = tirx.call_extern("int32", "system", "true").astype("float32")
    return program(te.compute((16,), lambda i: data[i] * status, name="doubled"), data)


def test_arithmetic_calls_nothing(doubled: Any) -> None:
    assert outside_calls(doubled["main"]) == frozenset()


def test_functions_of_the_c_library_that_tvm_chooses_are_no_calls_of_a_program() -> None:
    data = te.placeholder((16,), "float64", name="data")
    assert outside_calls(program(topi.erf(data), data)["main"]) == frozenset()


def test_a_schedule_that_brings_a_call_is_refused_and_the_call_is_named(doubled: Any, calling: Any) -> None:
    with pytest.raises(DamagedFile, match=r"call tirx.call_extern .*system"):
        check_calls(calling, doubled, NO_TRACE)


def test_a_program_that_calls_by_itself_may_go_on_to(calling: Any) -> None:
    check_calls(calling, calling, NO_TRACE)


def test_sorting_calls_the_runtime_as_it_did_before() -> None:
    data = te.placeholder((4, 16), name="data")
    module = program(topi.argsort(data), data)
    assert any("tvm.contrib.sort.argsort" in call for call in outside_calls(module["main"]))
    check_calls(module, module, NO_TRACE)


@pytest.mark.parametrize("key", ["pragma_import_llvm", "pragma_import_c", "pragma_debug_skip_region"])
def test_a_pragma_with_code_is_refused(doubled: Any, key: str) -> None:
    schedule = Schedule(doubled)
    (loop,) = schedule.get_loops(schedule.get_sblock("doubled"))
    schedule.annotate(loop, key, "int f() { return 0; }")
    with pytest.raises(DamagedFile, match=key):
        check_calls(schedule.mod, doubled, NO_TRACE)


def test_a_pragma_of_the_unroller_is_none() -> None:
    data = te.placeholder((16,), name="data")
    module = program(te.compute((16,), lambda i: data[i] * 2.0, name="doubled"), data)
    schedule = Schedule(module)
    (loop,) = schedule.get_loops(schedule.get_sblock("doubled"))
    schedule.annotate(loop, "pragma_auto_unroll_max_step", 64)
    check_calls(schedule.mod, module, NO_TRACE)


def test_an_intrinsic_may_be_called_where_the_trace_names_it(doubled: Any) -> None:
    intrinsics.register()
    name = intrinsics.DOTS[0].name
    scheduled = tvm.IRModule({"main": TensorIntrin.get(name).impl})
    check_calls(scheduled, doubled, [[["Tensorize", ["l0"], [name, 1], []]], []])
    with pytest.raises(DamagedFile, match="call_llvm_pure_intrin"):
        check_calls(scheduled, doubled, NO_TRACE)


def test_an_index_map_with_a_call_gets_past_neither_wall(doubled: Any) -> None:
    index_map = tirx.IndexMap.from_func(
        lambda i: [tirx.Select(tirx.call_extern("int64", "system", "true") == -7, i + 1, i)], index_dtype="int64"
    )
    text = tvm.ir.save_json(index_map)
    trace = [
        [
            ["GetSBlock", [], ["doubled", "main"], ["b0"]],
            ["TransformLayout", ["b0", text], [0, 1, None, True], []],
        ],
        [],
    ]
    with pytest.raises(ValueError, match="no rule gives TransformLayout such operands"):
        check_trace(json.loads(json.dumps(trace)))
    schedule = Schedule(doubled)
    schedule.transform_layout("doubled", ("write", 0), index_map, assume_injective_transform=True)
    with pytest.raises(DamagedFile, match="system"):
        check_calls(schedule.mod, doubled, trace)
