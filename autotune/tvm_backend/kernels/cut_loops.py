"""Loops that TVM is to cut where a condition begins to hold: it does so only for indices of 32 bits."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.types import IRModule, Loop, PrimFunc
from autotune.tvm_backend.untrusted_files import WHOLE_VECTORS

_INDEX = "int64"


def narrow_indices(module: IRModule) -> IRModule:
    """Return a module in which indices have 32 bits, in programs with loops that are to be cut.

    Programs that hold indices in tensors stay as they are, and compute under the condition.

    Args:
        module: Scheduled programs.
    """
    return over_programs(module, _narrowed)


def _narrowed(function: PrimFunc) -> PrimFunc:
    loops: list[Loop] = []
    dtypes = [str(getattr(parameter.ty, "dtype", "")) for parameter in function.params]
    tvm_ffi.structural_walk(
        function.body,
        (
            (tirx.For, lambda loop: loops.append(loop) if WHOLE_VECTORS in loop.annotations else None),
            (tirx.BufferStore, lambda store: dtypes.append(str(store.buffer.dtype))),
            (tvm.ir.TensorLoad, lambda load: dtypes.append(str(load.ty.dtype))),
        ),
    )
    if not loops or _INDEX in dtypes:
        return function
    narrow = tirx.transform.ForceNarrowIndexToInt32()
    return narrow(tvm.IRModule({"main": function}))["main"]
