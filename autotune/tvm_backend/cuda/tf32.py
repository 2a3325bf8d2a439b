"""Products of float32 on tensor cores, which round their operands to TF32: 10 bits of a fraction in place of 23.

A program whose products may be computed so has the attribute `ALLOWED`. Schedules that were logged before there was a
pipeline have the intrinsics of `wmma.TF32`. TVM's code generator refuses fragments of float32, so `with_fragments`
gives them a type that no other fragment has: fp16 in the shape 16x16x8. `fragments.cuh` tells CUDA what it means.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock
from tvm.tirx.analysis import undefined_vars

from autotune.tvm_backend.cuda.wmma import TF32
from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.types import IRModule, PrimExpr, PrimFunc, Stmt

ALLOWED = "autotune_tf32"
_ELEMENT = TF32.element
_FRAGMENTS = ("wmma.matrix_a", "wmma.matrix_b")


def is_allowed(program: IRModule) -> bool:
    """Return whether the products of a program may be computed in TF32."""
    return bool((program["main"].attrs or {}).get(ALLOWED))


def allow(module: IRModule) -> IRModule:
    """Allow TF32 in the programs of a module that multiply matrices of float32, as convolutions do, too.

    Args:
        module: A module after FuseTIR.
    """
    return over_programs(module, lambda function: function.with_attr(ALLOWED, 1) if _multiplies(function) else function)


def _multiplies(function: PrimFunc) -> bool:
    """Whether a program has a block that sums products of float32, of which each operand has an axis of its own."""
    products = list[Stmt]()

    def visit(block: Stmt) -> None:
        value = getattr(block.body, "value", None)
        factors = getattr(value, "b", None)
        if isinstance(value, tirx.Add) and isinstance(factors, tirx.Mul) and _are_apart(block, factors):
            products.append(block)

    tvm_ffi.structural_walk(function.body, ((SBlock, visit),))
    return bool(products)


def _are_apart(block: Stmt, factors: PrimExpr) -> bool:
    """Whether both factors are elements of float32, and each varies along an axis along which the other does not."""
    operands = (factors.a, factors.b)
    if not all(isinstance(item, TensorLoad) and str(item.ty) == _ELEMENT for item in operands):
        return False
    spatial = {item.var for item in block.iter_vars if int(item.iter_type) == 0}
    one, other = ({var for index in item.indices for var in undefined_vars(index)} & spatial for item in operands)
    return bool(one - other) and bool(other - one)


def with_fragments(function: PrimFunc) -> PrimFunc:
    """Give fragments of float32 operands of a lowered program the type that stands for TF32."""
    renamed = dict[object, object]()

    def visit(allocation: Stmt) -> None:
        fragment = allocation.buffer
        if fragment.scope() in _FRAGMENTS and str(fragment.dtype) == _ELEMENT:
            renamed[fragment] = tirx.decl_buffer(fragment.shape, "float16", fragment.name, scope=fragment.scope())

    tvm_ffi.structural_walk(function.body, ((tirx.AllocBuffer, visit),))
    if not renamed:
        return function
    kind = type(next(iter(renamed)))
    return function.with_body(tvm_ffi.structural_map(function.body, ((kind, lambda item: renamed.get(item, item)),)))
