"""Tell TVM's code generation for CPUs to compute elementary functions by our formulas.

LLVM gives exp, tanh, erf and the like to the C library, element by element where a loop is vectorised: YOLOv8n's SiLU
took as long as its convolutions. float64 stays with the C library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache

import tvm
from tvm import tirx

from autotune.tvm_backend.types import IRModule, PrimExpr
from autotune.tvm_backend.vector_math import exponential, logarithm, trigonometric
from autotune.tvm_backend.vector_math.formula import Formula

FORMULAS: dict[str, Callable[..., PrimExpr]] = {
    "tirx.exp": exponential.exp,
    "tirx.exp2": exponential.exp2,
    "tirx.exp10": exponential.exp10,
    "tirx.tanh": exponential.tanh,
    "tirx.sigmoid": exponential.sigmoid,
    "tirx.erf": exponential.erf,
    "tirx.sinh": exponential.sinh,
    "tirx.cosh": exponential.cosh,
    "tirx.log": logarithm.log,
    "prim.log2": logarithm.log2,
    "tirx.log10": logarithm.log10,
    "tirx.log1p": logarithm.log1p,
    "tirx.asinh": logarithm.asinh,
    "tirx.acosh": logarithm.acosh,
    "tirx.atanh": logarithm.atanh,
    "tirx.pow": logarithm.power,
    "tirx.sin": trigonometric.sin,
    "tirx.cos": trigonometric.cos,
    "tirx.tan": trigonometric.tan,
    "tirx.asin": trigonometric.asin,
    "tirx.acos": trigonometric.acos,
    "tirx.atan": trigonometric.atan,
}
VERSION = 2  # of the formulas: a kernel with other ones is another kernel
_LEVEL = 99  # above TVM's own rules
_LOWERING = "llvm.FLowerIntrinsic"
_NARROW = ("float16", "float32")

_from_library = False


@contextlib.contextmanager
def library_functions() -> Iterator[None]:
    """Generate code as TVM does by itself, without our formulas, for as long as the context lasts."""
    global _from_library
    before = _from_library
    _from_library = True
    try:
        yield
    finally:
        _from_library = before


@lru_cache(maxsize=1)
def register() -> None:
    """Make our formulas the lowering of the functions on CPUs, for the rest of this process."""
    for name in FORMULAS:
        otherwise = tvm.ir.Op.get(name).get_attr(_LOWERING)
        tirx.register_intrin_lowering(name, target="llvm", f=_rule(otherwise), level=_LEVEL)


def has_formulas(program: IRModule) -> bool:
    """Return whether a module calls a function that has a formula. This takes milliseconds."""
    text = tvm.ir.save_json(program)  # there is no visitor of tensor programs in Python
    return any(f'"{name}"' in text for name in FORMULAS)


def steps(call: PrimExpr) -> tuple[Formula, PrimExpr] | None:
    """Return the steps of the formula for a call, and what they end in; None where TVM's own rule stays."""
    formula = FORMULAS.get(getattr(call.op, "name", ""))
    element, _, lanes = str(call.ty.dtype).partition("x")
    if formula is None or _from_library or element not in _NARROW or "vscale" in lanes:
        return None
    f = Formula(int(lanes or 1))
    first, *rest = (f.cast(argument, "float32") for argument in call.args)
    return f, f.cast(formula(f, f.let(first), *rest), element)


def _rule(otherwise: Callable[[PrimExpr], PrimExpr] | None) -> Callable[[PrimExpr], PrimExpr]:
    """Return the rule for a call: our formula where it applies, otherwise TVM's own rule, if there is one."""

    def lower(call: PrimExpr) -> PrimExpr:
        ours = steps(call)
        if ours is None:
            return otherwise(call) if otherwise is not None else call
        f, result = ours
        return f.close(result)

    return lower
