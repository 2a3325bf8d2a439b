"""Products of float32 on tensor cores, which round their operands to TF32: 10 bits of a fraction in place of 23.

A program whose products may be computed so has the attribute `ALLOWED`. TVM has no rule for TF32. Its rule for WMMA
takes intrinsics by name, and those that are registered here are its own for fp16, with elements of float32. TVM's code
generator refuses such fragments, so `with_fragments` gives them a type that no other fragment has: fp16 in the shape
16x16x8. `compiler.TF32_FRAGMENTS` tells CUDA what it means.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.schedule_rule import ReuseType
from tvm.tirx.analysis import undefined_vars

from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.types import Instruction, IRModule, PrimExpr, PrimFunc, Schedule, Stmt

ALLOWED = "autotune_tf32"
MARK = "_tf32"  # in the names of the intrinsics

_SHAPE = (16, 16, 8)
_NAME = "wmma_{}_16x16x8_tf32{}"
_ELEMENT = "float32"
_SHARED = "shared.dyn"
_FRAGMENTS = ("wmma.matrix_a", "wmma.matrix_b")
# How many elements more than a multiple of 32 the rows of an operand have in shared memory. The 32 elements that a warp
# reads at a time lie in different banks then. A fragment begins at a multiple of 32 bytes all the same.
_BANKS = 32
_BEYOND = {"a": 4, "b": 8, "b_trans": 4}
_OPERANDS = ("a", "b")


def register() -> None:
    """Register the intrinsics. Those of TVM's for CUDA have been imported."""
    from tvm.s_tir.tensor_intrin import cuda

    shape_of_operands = (*_SHAPE, _ELEMENT)
    intrinsics = {
        _NAME.format("fill", ""): cuda.get_wmma_fill_intrin(*shape_of_operands),
        _NAME.format("load", "_a"): cuda.get_wmma_load_intrin(*shape_of_operands, _SHARED, False, False),
        _NAME.format("store", ""): cuda.get_wmma_store_intrin(*shape_of_operands, _SHARED),
    }
    for suffix, transposed in (("", False), ("_trans", True)):
        load = cuda.get_wmma_load_intrin(*shape_of_operands, _SHARED, True, transposed)
        intrinsics[_NAME.format("load", f"_b{suffix}")] = load
        intrinsics[_NAME.format("sync", suffix)] = cuda.get_wmma_sync_intrin(*shape_of_operands, _ELEMENT, transposed)
    for name, (description, implementation) in intrinsics.items():
        TensorIntrin.register(name, description, implementation, override=True)


def rule() -> ms.ScheduleRule:
    """Return MetaSchedule's rule for tensor cores with the intrinsics of TF32."""
    groups = [
        {
            "init": _NAME.format("fill", ""),
            "load_a": _NAME.format("load", "_a"),
            "load_b": _NAME.format("load", f"_b{suffix}"),
            "compute": _NAME.format("sync", suffix),
            "store": _NAME.format("store", ""),
        }
        for suffix in ("", "_trans")
    ]
    return ms.schedule_rule.MultiLevelTilingTensorCore(
        intrin_groups=groups,
        structure="SSSRRSRS",
        tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        max_innermost_factor=4,
        vector_load_lens=[1, 2, 4],
        reuse_read=ReuseType(req="must", levels=[4], scope=_SHARED),
        reuse_write=ReuseType(req="must", levels=[2], scope=_SHARED),
        use_software_pipeline=False,
    )


def copies_to_shared(schedule: Schedule) -> list[Instruction]:
    """Return the instructions that copy the operands of a product on tensor cores to shared memory."""
    instructions = schedule.trace.insts
    return [item for item in instructions if item.kind.name == "CacheRead" and _SHARED in map(str, item.attrs)]


def spread_over_banks(schedule: Schedule) -> None:
    """Lengthen the rows of the operands in shared memory, which TVM's rule does for fp16 and int8 only."""
    suffix = "_trans" if _NAME.format("load", "_b_trans") in str(schedule.trace) else ""
    for item in copies_to_shared(schedule):
        operand = _OPERANDS[int(item.attrs[0])]
        beyond = _BEYOND.get(operand + suffix, _BEYOND[operand])
        schedule.storage_align(item.outputs[0], 0, -2, _BANKS, beyond)


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


def with_fragments(module: IRModule) -> IRModule:
    """Give fragments of float32 operands the type that stands for TF32.

    Args:
        module: What TVM's passes for lowering return.
    """
    return over_programs(module, _with_fragments)


def _with_fragments(function: PrimFunc) -> PrimFunc:
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
