"""Check what tensor programs consist of and call outside of themselves: nothing that a file could choose.

A tensor program is data, but TVM's JSON may name any registered type, `ffi.Module` (a compiled library) among them. So
`check_graph` lets the types through that programs consist of. The program that is read then may call what TVM's
lowering of models calls: arithmetic and the sorting of TVM's runtime (`check_program`).

A schedule brings no call along (`check_calls`): `tvm_backend/untrusted_traces.py` refuses traces that could, and this
is the second wall, in front of the compiler, whatever a schedule came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, TensorIntrin

from autotune.errors import DamagedFile
from autotune.tvm_backend.cuda.tf32 import ALLOWED
from autotune.tvm_backend.index_map import unique_keys
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.types import IRModule, PlainTrace, PrimExpr, PrimFunc, Stmt

# Node types that a tensor program consists of. `ffi.Module` would load compiled code, and functions are called.
_DATA_TYPES = re.compile(
    r"None|int|bool|float|(ffi\.)?(DataType|Device)|ffi\.(Array|List|Map|Dict|(Small)?(String|Str|Bytes)|Shape|Tensor)"
    r"|ir\.(Call|DictAttrs|GlobalVar|IRModule|Op|Range|Source(Map|Name)|(Sequential)?Span|Tensor(Load|Region)|Var)"
    r"|ir\.(\w+Imm|(\w+)?Type)"
    r"|(prim|tirx)\.\w+|s_tir\.(MatchBufferRegion|SBlock|SBlockRealize)|relax\.(\w+Type|expr\.ShapeExpr)"
)
# Operators that compute a value of their operands. All others touch memory, name a function, or bring code along.
_ARITHMETIC = re.compile(
    r"prim\.(ceil|clz|if_then_else|likely|log2)"
    r"|tirx\.(a?(cos|sin|tan)h?|atan2|copysign|ctpop|erf|exp(2|10)?|fabs|floor|fma|fmod|hypot|is(finite|inf|nan)|ldexp)"
    r"|tirx\.(log(10|1p)?|nearbyint|nextafter|popcount|pow|q_multiply_shift(_per_axis)?|reinterpret|round|rsqrt)"
    r"|tirx\.(sigmoid|sqrt|trunc|vector(combine|high|low))"
)
# Annotations and attributes whose value the code generator compiles or calls.
_CODE = re.compile(
    r"pragma_(?!auto_unroll_max_step$|loop_partition_hint$|unroll_explicit$|scope$).*|extern_scope|.*callback.*"
)
_NAMES_INTRINSIC = ("meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init")
# What TVM's lowering of models calls: the functions that sort, with their operands, and barriers between threads.
_LOWERED = re.compile(
    r'tirx\.tvm_call_packed "tvm\.contrib\.(sort|thrust)\.\w+"|tirx\.(tvm_stack_make_(array|shape)|buffer_data)'
    r'|tirx\.atomic_add|tirx\.tvm_storage_sync "(shared|global)"'
)
_OPENS_SCOPE = frozenset({"thread_extent", "pragma_scope"})
_OURS = (MAX_THREADS, ALLOWED)  # whose value is a number
_ATTRIBUTES = frozenset(
    {"global_symbol", "op_pattern", "s_tir", "tirx.noalias", "tirx.is_scheduled", "layout_free_buffers", *_OURS}
)
_NAME = "main"


def check_graph(text: str) -> None:
    """Make sure that TVM's JSON makes nothing but data.

    Raises:
        ValueError: It is not such JSON, or names a type that is not allowed.
    """
    try:
        types = [str(node["type"]) for node in json.loads(text, object_pairs_hook=unique_keys)["nodes"]]
    except (KeyError, TypeError, RecursionError):
        raise ValueError("it is not TVM's JSON") from None
    if forbidden := [name for name in types if not _DATA_TYPES.fullmatch(name)]:
        raise ValueError(f"a program has no {forbidden[0]}")


def check_program(module: IRModule) -> None:
    """Make sure that a tensor program of a task calls nothing but what TVM's lowering of models calls.

    Raises:
        ValueError: It calls something else, or is no single tensor program. The message names the call.
    """
    functions = dict(module.functions.items())
    if [str(name.name_hint) for name in functions] != [_NAME]:
        raise ValueError(f"it has other functions than {_NAME!r}")
    (function,) = functions.values()
    if not isinstance(function, tirx.PrimFunc):
        raise ValueError(f"its {_NAME!r} is no tensor program")
    attributes = dict(function.attrs or {})
    if unknown := sorted({str(key) for key in attributes} - _ATTRIBUTES):
        raise ValueError(f"it has the attribute {unknown[0]!r}, which no lowering of a model makes")
    if wrong := [name for name in _OURS if not isinstance(attributes.get(name, 1), int)]:
        raise ValueError(f"its {wrong[0]!r} is no number")
    if str(attributes.get("global_symbol", _NAME)) != _NAME:
        raise ValueError(f"its symbol is {attributes['global_symbol']!r}")
    if unknown := sorted(call for call in outside_calls(function) if not _LOWERED.fullmatch(call)):
        raise ValueError(f"it calls {unknown[0]}, which no lowering of a model does")


def outside_calls(function: PrimFunc) -> frozenset[str]:
    """Return what a tensor program calls besides arithmetic: operators, with the function or intrinsic that they name.

    Annotations and attributes that bring code along or call something are among them.
    """
    calls: set[str] = set()

    def call(node: PrimExpr) -> None:
        name = str(getattr(node.op, "name", "") or getattr(node.op, "name_hint", "?"))
        if not _ARITHMETIC.fullmatch(name):
            calls.add(f"{name} {_named(node.args[0], name) if len(node.args) else ''}".rstrip())

    def annotated(node: Stmt) -> None:
        calls.update(key for key in map(str, node.annotations) if _CODE.fullmatch(key))
        walk(node.annotations.values())  # which are no part of a loop's structure

    def attribute(node: Stmt) -> None:
        if str(node.attr_key) not in _OPENS_SCOPE:
            calls.add(str(node.attr_key))

    def walk(nodes: Iterable[Any]) -> None:
        for node in nodes:
            tvm_ffi.structural_walk(node, visitors)

    visitors = ((tvm.ir.Call, call), (tirx.For, annotated), (SBlock, annotated), (tirx.AttrStmt, attribute))
    walk([function, *dict(function.attrs or {}).values()])
    return frozenset(calls)


def _named(operand: PrimExpr, operator: str) -> str:
    """Return which function or intrinsic the first operand of an operator names; empty if it is a value."""
    names = isinstance(operand, tvm.ir.StringImm) or ("llvm" in operator and isinstance(operand, tirx.IntImm))
    return str(operand) if names else ""


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
