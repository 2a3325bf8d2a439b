"""Add the code of instructions on types that TVM lacks to the programs that call it."""

from __future__ import annotations

import tvm_ffi
from tvm import relax, tirx

from autotune.tvm_backend.intrinsics.bfloat16 import rounded_number
from autotune.tvm_backend.isa.available import has, sets_of
from autotune.tvm_backend.isa.values import LANES, LlvmFunctions
from autotune.tvm_backend.programs import with_llvm_code
from autotune.tvm_backend.types import Call, PrimExpr, PrimFunc, Stmt, Target


def functions_of(target: Target) -> list[LlvmFunctions]:
    """Return the functions for instructions that the CPU of a target has."""
    functions = [item.functions for item in sets_of(target) if item.functions is not None]
    return [item for item in functions if has(target, item.feature)]


def with_functions(program: PrimFunc, functions: LlvmFunctions) -> PrimFunc:
    """Round vectors to bfloat16 by an instruction, and add the code of the functions that a program calls.

    Args:
        program: A lowered program, for a CPU that has the instructions.
    """
    body = program.body
    if functions.rounding:
        body = tvm_ffi.structural_map(body, ((tirx.Cast, lambda cast: _rounded_at_once(cast, functions.rounding)),))
    return with_llvm_code(program, body, functions.code) if _calls_any(body, functions.names) else program


def _rounded_at_once(cast: PrimExpr, function: str) -> PrimExpr:
    """A vector that `from_float` rounds by integers, rounded by a function; another cast as it is."""
    number = rounded_number(cast)
    if number is None or str(cast.ty.dtype) != f"uint16x{LANES}":
        return cast
    return tirx.call_pure_extern(str(cast.ty.dtype), function, number)


def _calls_any(body: Stmt, names: tuple[str, ...]) -> bool:
    calls: list[Call] = []

    def look(call: Call) -> None:
        if getattr(call.op, "name", "") == "tirx.call_pure_extern" and call.args[0].value in names:
            calls.append(call)

    tvm_ffi.structural_walk(body, ((relax.Call, look),))
    return bool(calls)
