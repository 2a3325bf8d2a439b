"""A schedule makes a program call nothing that the program itself and our own intrinsics do not call.

`autotune.tvm_backend.sanitize` refuses traces that could bring a call along. This is the second wall: it looks at the
scheduled program that is about to be compiled, whatever its schedule came from.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, TensorIntrin

from autotune.errors import DamagedFile
from autotune.tvm_backend.types import IRModule, PlainTrace, PrimExpr, PrimFunc, Stmt

# Operators that leave the program: functions by name, intrinsics of LLVM by number, assembly.
_LEAVES = re.compile(r".*(extern|packed|intrin|asm|lookup|call).*")
# Annotations and attributes whose value the code generator compiles or calls.
_CODE = re.compile(r"pragma_(?!auto_unroll_max_step$|unroll_explicit$).*|extern_scope|.*callback.*")
_NAMES_INTRINSIC = ("meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init")


def outside_calls(function: PrimFunc) -> frozenset[str]:
    """Return what a tensor program calls outside of itself: operators with the function or intrinsic that they name."""
    calls: set[str] = set()

    def call(node: PrimExpr) -> None:
        name = str(getattr(node.op, "name", ""))
        if _LEAVES.fullmatch(name):
            calls.add(f"{name} {node.args[0] if len(node.args) else ''}")

    def annotated(node: Stmt) -> None:
        calls.update(key for key in map(str, node.annotations) if _CODE.fullmatch(key))

    def attribute(node: Stmt) -> None:
        if _CODE.fullmatch(str(node.attr_key)):
            calls.add(str(node.attr_key))

    visitors = ((tvm.ir.Call, call), (tirx.For, annotated), (SBlock, annotated), (tirx.AttrStmt, attribute))
    tvm_ffi.structural_walk(function.body, visitors)
    return frozenset(calls)


def check_calls(scheduled: IRModule, program: IRModule, trace: PlainTrace) -> None:
    """Make sure that a schedule has brought no call along.

    Args:
        scheduled: The program with its schedule.
        program: The program without one.
        trace: The trace of the schedule, for the intrinsics that it names. They are TVM's or ours.

    Raises:
        DamagedFile: The scheduled program calls something else. The message names it.
    """
    allowed = _all_calls(program) | frozenset[str]().union(*map(_calls_of_intrinsic, _intrinsics(trace)))
    if brought := sorted(_all_calls(scheduled) - allowed):
        raise DamagedFile(f"a schedule is refused: it makes the program call {brought[0]}")


def _all_calls(module: IRModule) -> frozenset[str]:
    functions = [function for function in module.functions.values() if isinstance(function, tirx.PrimFunc)]
    return frozenset[str]().union(*map(outside_calls, functions))


def _intrinsics(trace: PlainTrace) -> set[str]:
    tensorized = {str(attributes[0]) for kind, _, attributes, _ in trace[0] if kind == "Tensorize"}
    annotations = [(attributes[0], inputs[1]) for kind, inputs, attributes, _ in trace[0] if kind == "Annotate"]
    return tensorized | {str(value).strip('"') for key, value in annotations if key in _NAMES_INTRINSIC}


def _calls_of_intrinsic(name: str) -> frozenset[str]:
    intrinsic = TensorIntrin.get(name, allow_missing=True)
    return outside_calls(intrinsic.impl) if intrinsic is not None else frozenset()
