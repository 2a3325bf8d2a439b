"""Rewrite the tensor programs of a module, as the passes of lowering do, and compile code of LLVM for them to call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.linker import architecture
from autotune.tvm_backend.types import IRModule, PrimExpr, PrimFunc, Stmt


def over_programs(module: IRModule, rewrite: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    """Return a module with each of its tensor programs rewritten; other functions stay as they are."""
    functions = {
        name: rewrite(function) if isinstance(function, tirx.PrimFunc) else function
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def replaced(node: Stmt | PrimExpr, variable: PrimExpr, value: PrimExpr) -> Stmt | PrimExpr:
    """Return an expression or a statement with a value in place of a variable."""
    return tvm_ffi.structural_map(node, ((tirx.Var, lambda item: value if item.same_as(variable) else item),))


def with_llvm_code(function: PrimFunc, body: Stmt, code: str) -> PrimFunc:
    """Return a tensor program with another body, which calls functions that are written in LLVM's language."""
    pragma = tvm.ir.StringImm(code)
    return function.with_body(tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", pragma, body))


def llvm_object(code: str, triple: str = "") -> bytes:
    """Compile code that is written in LLVM's language, and return the object file.

    Args:
        code: The code.
        triple: What to compile for, such as `aarch64-linux-gnu`; empty for this machine.
    """
    head = f'target triple = "{triple or architecture("") + "-unknown-linux-gnu"}"\n'
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "code.ll")
        source.write_text(head + code)
        output = Path(folder, "code.o")
        tvm.runtime.load_module(str(source)).write_to_file(str(output), "o")
        return output.read_bytes()
