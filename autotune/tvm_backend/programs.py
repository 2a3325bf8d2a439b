"""Rewrite the tensor programs of a module, as the passes of lowering do, and give them code of LLVM to call."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx

from autotune.tvm_backend.types import IRModule, PrimFunc, Stmt


def over_programs(module: IRModule, rewrite: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    """Return a module with each of its tensor programs rewritten; other functions stay as they are."""
    functions = {
        name: rewrite(function) if isinstance(function, tirx.PrimFunc) else function
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def with_llvm_code(function: PrimFunc, body: Stmt, code: str) -> PrimFunc:
    """Return a tensor program with another body, which calls functions that are written in LLVM's language."""
    pragma = tvm.ir.StringImm(code)
    return function.with_body(tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", pragma, body))
