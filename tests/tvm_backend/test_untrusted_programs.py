"""Programs are refused that are code, or call what no lowering of a model calls; so are schedules that bring a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule, TensorIntrin

from autotune.errors import DamagedFile
from autotune.tvm_backend.intrinsics import dots
from autotune.tvm_backend.isa.available import DOTS
from autotune.tvm_backend.search.tasks import read_program, task_hash, write_program
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.untrusted_programs import check_calls, check_graph, check_program, outside_calls
from autotune.tvm_backend.untrusted_traces import check_trace

from .. import hostile

DATA = Path(__file__).parents[1] / "data"
NO_TRACE = [[], []]
SYSTEM = tirx.call_extern("int64", "system", "true")


def program(result: Any, *arguments: Any) -> Any:
    return tvm.IRModule({"main": te.create_prim_func([*arguments, result]).with_attr("global_symbol", "main")})


def evaluating(call: Any, *parameters: Any) -> Any:
    function = tirx.PrimFunc(list(parameters), tirx.Evaluate(call))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def annotated(module: Any, value: Any) -> Any:
    schedule = Schedule(module)
    (loop,) = schedule.get_loops(schedule.get_sblock("doubled"))
    schedule.annotate(loop, "note", value)
    return schedule.mod


def with_attribute(module: Any, key: str, value: Any) -> Any:
    return tvm.IRModule({"main": module["main"].with_attr(key, value)})


def op(name: str, *operands: Any) -> Any:
    return tvm.ir.Call(tvm.ir.Op.get(name), list(operands), ret_ty=tvm.ir.PrimType("int32"))


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


def test_sorting_calls_the_runtime_as_it_did_before() -> None:
    data = te.placeholder((4, 16), name="data")
    module = program(topi.argsort(data), data)
    assert any("tvm.contrib.sort.argsort" in call for call in outside_calls(module["main"]))
    check_calls(module, module, NO_TRACE)


def test_arithmetic_and_sorting_are_what_programs_may_do(doubled: Any) -> None:
    check_program(doubled)
    data = te.placeholder((4, 16), "float64", name="data")
    for result in (topi.argsort(data), topi.erf(data), topi.nn.softmax(data), topi.power(data, data)):
        check_program(program(result, data))


def test_a_limit_of_threads_is_a_number() -> None:
    data = te.placeholder((4, 16), "float32", name="data")
    module = program(topi.nn.relu(data), data)
    for limit in (1, "one"):
        module.update_func(module.get_global_var("main"), module["main"].with_attr(MAX_THREADS, limit))
        if limit == 1:
            check_program(module)
    with pytest.raises(ValueError, match="^its 'autotune_threads' is no number$"):
        check_program(module)


@pytest.mark.parametrize(
    "call",
    [
        SYSTEM,
        tirx.call_pure_extern("int32", "system", "true"),
        tirx.call_packed("tvm.rpc.server.start"),
        tirx.call_packed("tvm.contrib.sort.argsort.other/../x"),
        tirx.call_llvm_intrin("int32", "llvm.x86.rdtsc"),
        op("tirx.cuda.func_call", tvm.ir.StringImm("f"), tvm.ir.StringImm("__device__ void f() {}")),
        op("tirx.tvm_struct_set", tirx.const(0, "int64"), 0, 0, 0),
        op("tirx.tvm_static_handle"),
        op("tirx.handle_add_byte_offset", tirx.const(0, "int64"), 1),
        op("tirx.call_ffi_kernel"),
    ],
    ids=lambda call: str(call.op.name),
)
def test_all_else_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match=f"it calls {call.op.name}.*, which no lowering of a model does"):
        check_program(evaluating(call))


def test_a_call_is_found_wherever_an_expression_can_be(doubled: Any) -> None:
    places = {
        "value": evaluating(tirx.const(1, "int64") + SYSTEM),
        "shape": evaluating(tirx.const(0), tirx.decl_buffer((SYSTEM,), name="data")),
        "stride": evaluating(tirx.const(0), tirx.decl_buffer((4,), strides=[SYSTEM], name="data")),
        "offset": evaluating(tirx.const(0), tirx.decl_buffer((4,), elem_offset=SYSTEM, name="data")),
        "annotation": annotated(doubled, [SYSTEM]),
        "attribute": with_attribute(doubled, "layout_free_buffers", [SYSTEM]),
    }
    for place, module in places.items():
        with pytest.raises(ValueError, match="call_extern"):
            check_program(module)
            pytest.fail(place)


def test_a_program_is_one_function_with_known_attributes_that_is_called_main(doubled: Any) -> None:
    main = doubled["main"]
    for module, message in (
        (tvm.IRModule({"main": main, "other": main}), "other functions"),
        (tvm.IRModule({"malloc": main}), "other functions"),
        (with_attribute(doubled, "global_symbol", "malloc"), "its symbol is 'malloc'"),
        (with_attribute(doubled, "target", tvm.target.Target({"kind": "c"})), "the attribute 'target'"),
        (tvm.IRModule({"main": tvm.relax.ExternFunc("system")}), "no tensor program"),
    ):
        with pytest.raises(ValueError, match=message):
            check_program(module)


def test_a_program_that_calls_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "000.json"
    module = evaluating(SYSTEM)
    write_program(path, module)
    with pytest.raises(DamagedFile, match=r'it calls tirx\.call_extern "system"'):
        read_program(path, task_hash(module))


def test_a_program_that_was_written_as_text_is_read(tmp_path: Path) -> None:
    """It says where in the text its parts stand."""
    module = hostile.program("good")
    write_program(tmp_path / "000.json", module)
    assert task_hash(read_program(tmp_path / "000.json", task_hash(module))) == task_hash(module)


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
    dots.register()
    name = DOTS[0].name
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


def graph(*types: str) -> str:
    return json.dumps({"root_index": 0, "nodes": [{"type": name, "data": {}} for name in types]})


class TestTypes:
    def test_a_real_one_is_let_through_until_it_names_code(self) -> None:
        text = (DATA / "task.json").read_text()
        check_graph(text)
        with pytest.raises(ValueError, match=r"ffi\.Module"):
            check_graph(text.replace('"ffi.Map"', '"ffi.Module"', 1))

    @pytest.mark.parametrize(
        "type", ["ffi.Module", "ffi.Function", "ir.EnvFunc", "runtime.Module", "ffi.OpaquePyObject"]
    )
    def test_what_is_code_is_refused(self, type: str) -> None:
        with pytest.raises(ValueError, match=type):
            check_graph(graph("ir.IRModule", type))

    @pytest.mark.parametrize("type", ["ffi.Module", "ffi.Function"])
    def test_it_is_refused_before_it_is_read(self, type: str, tmp_path: Path) -> None:
        path = tmp_path / "000.json"
        path.write_text(graph(type))
        with pytest.raises(DamagedFile, match=f"a program has no {type}"):
            read_program(path, "0" * 16)

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"nodes": 3}', '{"nodes": [3]}', "[" * 100_000])
    def test_what_is_no_program_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "000.json").write_text(text)
        with pytest.raises(DamagedFile):
            read_program(tmp_path / "000.json", "0" * 16)

    def test_another_program_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "000.json").write_text((DATA / "task.json").read_text())
        with pytest.raises(DamagedFile, match="another program"):
            read_program(tmp_path / "000.json", "0" * 16)

    def test_a_key_that_is_there_twice_is_refused(self) -> None:
        text = json.dumps(json.loads((DATA / "task.json").read_text()))
        with pytest.raises(ValueError, match="twice"):
            check_graph(text.replace('"type": "None"', '"type": "ffi.Function", "type": "None"', 1))
