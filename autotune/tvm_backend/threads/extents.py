"""Tell the thread pool how many iterations a parallel loop has, so that it can cut the loop into equal pieces."""

from __future__ import annotations

import tvm
from tvm import tirx

from autotune.tvm_backend.types import IRModule, Loop, PrimFunc, Stmt

_ANNOUNCE = "autotune_announce"
# The variable is that of pool.c, or, in a program that is run without the pool, one that nobody reads.
_CODE = f"""
@autotune_next_extent = weak hidden global i32 0, align 4
define void @{_ANNOUNCE}(i32 %extent) alwaysinline {{
  store atomic i32 %extent, ptr @autotune_next_extent monotonic, align 4
  ret void
}}
"""


def announce_extents(module: IRModule) -> IRModule:
    """Insert a call in front of each parallel loop that passes its number of iterations to the pool.

    Args:
        module: What TVM's passes for lowering return.
    """
    functions = {name: _announcing(function) for name, function in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _announcing(function: PrimFunc) -> PrimFunc:
    body = _visit(function.body)
    if body.same_as(function.body):
        return function
    node = tirx.IntImm("int32", 0)
    code = tvm.ir.StringImm(_CODE)
    return function.with_body(tirx.AttrStmt(node, "pragma_import_llvm", code, body))


def _visit(statement: Stmt) -> Stmt:
    match type(statement).__name__:
        case "SeqStmt":
            items = [_visit(item) for item in statement.seq]
            same = all(item.same_as(before) for item, before in zip(items, statement.seq, strict=True))
            return statement if same else tirx.SeqStmt(items)
        case "AttrStmt":
            body = _visit(statement.body)
            if body.same_as(statement.body):
                return statement
            return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
        case "For":
            return _loop(statement)
    return statement


def _loop(loop: Loop) -> Stmt:
    if loop.kind == tirx.ForKind.PARALLEL:  # loops in it are serial to the compiler, whatever they say
        return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("void", _ANNOUNCE, loop.extent.astype("int32"))), loop])
    body = _visit(loop.body)
    if body.same_as(loop.body):
        return loop
    head = loop.loop_var, loop.min, loop.extent, loop.kind
    return tirx.For(*head, body, loop.thread_binding, loop.annotations)
