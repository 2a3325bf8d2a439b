"""Let kernels take tensors that begin somewhere in a memory, and not at its start.

Such a tensor has the address of the memory and a `byte_offset`. TVM compiles a check that this is zero, or that a
buffer with an `elem_offset` finds its elements there, for which it adds the offset to each index and knows nothing of
alignment. A kernel that adds it to the address once computes its elements as before.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.types import Call, Expr, PrimFunc, Stmt, Var

_GET = "tirx.tvm_struct_get"
_DATA = 1  # the number of this field of a DLTensor in `tirx.builtin`
_BYTE_OFFSET = 8


def add_offsets(function: PrimFunc) -> PrimFunc:
    """Let the tensors of a lowered kernel begin where their `byte_offset` says, instead of a check that it is zero.

    It has to be a multiple of the alignment of the tensor. A buffer with an `elem_offset` stays as it is.
    """
    tensors = set[Var]()

    def note(check: Stmt) -> None:
        tensor = _checked(check)
        if tensor is not None:
            tensors.add(tensor)

    tvm_ffi.structural_walk(function.body, ((tirx.AssertStmt, note),))

    def unchecked(check: Stmt) -> Stmt:
        return check if _checked(check) is None else tirx.Evaluate(tirx.IntImm("int32", 0))

    def moved(call: Call) -> Call:
        tensor = _tensor_of(call, _DATA)
        return _plus_offset(call, tensor) if tensor in tensors else call

    maps = ((tirx.AssertStmt, unchecked), (tvm.ir.Call, moved))
    return function.with_body(tvm_ffi.structural_map(function.body, maps)) if tensors else function


def _checked(check: Stmt) -> Var | None:
    """Return the tensor whose offset has to be zero by a check; None if it checks something else."""
    condition = check.condition
    if not isinstance(condition, tirx.EQ) or not isinstance(condition.a, tirx.IntImm) or int(condition.a) != 0:
        return None
    return _tensor_of(condition.b, _BYTE_OFFSET)


def _tensor_of(value: Expr, field: int) -> Var | None:
    """Return the tensor of which a value is this field; None if it is something else."""
    if not isinstance(value, tvm.ir.Call) or getattr(value.op, "name", "") != _GET or int(value.args[2]) != field:
        return None
    return value.args[0]


def _plus_offset(data: Call, tensor: Var) -> Call:
    offset = tirx.call_intrin("uint64", _GET, tensor, 0, _BYTE_OFFSET)
    return tvm.ir.Call(tvm.ir.Op.get("tirx.handle_add_byte_offset"), [data, offset], ret_ty=data.ty)
