"""Tensor programs: how they are made, marked, rewritten and read, and code of LLVM that they call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from autotune.tvm_backend.linker import architecture
from autotune.tvm_backend.types import Call, IRModule, PrimExpr, PrimFunc, Stmt, TensorExpr

OPAQUE = 8  # TVM's number for an operator that is fused with no other


def unscheduled(arguments: Sequence[TensorExpr]) -> PrimFunc:
    """Return the program of a tensor expression, the last argument, for which a schedule has to be found."""
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func(list(arguments))}))
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    return schedule.mod["main"].without_attr("global_symbol").with_attr({"op_pattern": OPAQUE})


def finished(program: PrimFunc) -> PrimFunc:
    """Return a tensor program as one that is scheduled, and that is fused with no other."""
    return program.without_attr("global_symbol").with_attr({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def runtime_functions(program: PrimFunc) -> list[str]:
    """Return the names of the functions of TVM's runtime that a tensor program calls."""
    names: list[str] = []

    def look(call: Call) -> None:
        if "packed" in getattr(call.op, "name", ""):
            names.append(str(getattr(call.args[0], "value", call.args[0])))

    tvm_ffi.structural_walk(program.body, ((relax.Call, look),))
    return names


def over_programs(module: IRModule, *rewrites: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    """Return a module with each of its tensor programs rewritten, in this order; other functions stay as they are."""
    functions = dict(module.functions.items())
    for name, function in functions.items():
        if isinstance(function, tirx.PrimFunc):
            functions[name] = reduce(lambda program, rewrite: rewrite(program), rewrites, function)
    return tvm.IRModule(functions, attrs=module.attrs)


def replaced(node: Stmt | PrimExpr, variable: PrimExpr, value: PrimExpr) -> Stmt | PrimExpr:
    """Return an expression or a statement with a value in place of a variable."""
    return tvm_ffi.structural_map(node, ((tirx.Var, lambda item: value if item.same_as(variable) else item),))


def with_body(statement: Stmt, body: Stmt) -> Stmt:
    """Return a loop or an attribute with another body."""
    if body.same_as(statement.body):
        return statement
    if type(statement).__name__ == "AttrStmt":
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    loop = statement.loop_var, statement.min, statement.extent, statement.kind
    return tirx.For(*loop, body, statement.thread_binding, statement.annotations)


def with_items(sequence: Stmt, items: list[Stmt]) -> Stmt:
    """Return a sequence of statements with others in place of them."""
    same = all(item.same_as(before) for item, before in zip(items, sequence.seq, strict=True))
    return sequence if same else tirx.SeqStmt(items)


def with_llvm_code(function: PrimFunc, body: Stmt, code: str) -> PrimFunc:
    """Return a tensor program with another body, which calls functions that are written in LLVM's language."""
    pragma = tvm.ir.StringImm(code)
    return function.with_body(tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", pragma, body))


def llvm_object(code: str, triple: str = "") -> bytes:
    """Compile code that is written in LLVM's language, and return the object file.

    Args:
        triple: What to compile for, such as `aarch64-linux-gnu`; empty for this machine.
    """
    head = f'target triple = "{triple or architecture("") + "-unknown-linux-gnu"}"\n'
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "code.ll")
        source.write_text(head + code)
        output = Path(folder, "code.o")
        tvm.runtime.load_module(str(source)).write_to_file(str(output), "o")
        return output.read_bytes()
