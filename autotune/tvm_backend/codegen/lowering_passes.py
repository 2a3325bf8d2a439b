"""The passes that lower a scheduled program to what LLVM or CUDA compiles: those of TVM, and ours around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.codegen.flat_formulas import write_around
from autotune.tvm_backend.codegen.not_a_number import keep_not_a_number
from autotune.tvm_backend.codegen.prefetch import prefetch_weights
from autotune.tvm_backend.codegen.strided_copies import copy_columns_singly
from autotune.tvm_backend.codegen.tensor_offsets import add_offsets
from autotune.tvm_backend.codegen.transposed_loads import transpose_in_registers
from autotune.tvm_backend.cuda.tensor_pipeline import write_pipelines
from autotune.tvm_backend.cuda.tf32 import with_fragments
from autotune.tvm_backend.intrinsics import bfloat16
from autotune.tvm_backend.intrinsics.llvm_code import functions_of, with_functions
from autotune.tvm_backend.intrinsics.tile_kernels import with_tiles
from autotune.tvm_backend.isa.available import architecture, sets_of
from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.threads.concurrent_loops import join_loops
from autotune.tvm_backend.threads.extents import announce_extents
from autotune.tvm_backend.types import IRModule, Loop, Pass, PrimFunc, Stmt, Target
from autotune.tvm_backend.untrusted_traces import WHOLE_VECTORS

_MAX_ON_STACK = 8192  # bytes
Rewrite = Callable[[PrimFunc], PrimFunc]


def keep_on_stack(function: PrimFunc) -> PrimFunc:
    """Leave local arrays of some kilobytes of a lowered program on the stack, where LLVM keeps sums in registers.

    TVM would put those of 1 KiB or more on the heap. There, LLVM leaves out the stores of a loop only if it can prove
    that nothing else uses the array, which it cannot in large functions.
    """
    return function.with_body(tvm_ffi.structural_map(function.body, ((tirx.AllocBuffer, _local_on_stack),)))


def _local_on_stack(allocation: Stmt) -> Stmt:
    array = allocation.buffer
    if array.scope() != "local" or not all(isinstance(extent, tirx.IntImm) for extent in array.shape):
        return allocation
    element = array.dtype
    size = prod(map(int, array.shape)) * element.bits * element.lanes // 8
    if size > _MAX_ON_STACK:
        return allocation
    return tirx.AllocBuffer(array, {**dict(allocation.annotations), "disable_lower_builtin": tirx.IntImm("bool", 1)})


def narrow_indices(function: PrimFunc) -> PrimFunc:
    """Return a scheduled program with indices of 32 bits, if it has loops to cut where a condition begins to hold.

    TVM cuts loops with such indices only. Programs that hold indices in tensors compute under the condition.
    """
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
    if not loops or "int64" in dtypes:
        return function
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": function}))["main"]


def pipeline(target: Target) -> str:
    """Return the name under which TVM knows the passes for a target."""
    if target.kind.name == "cuda":
        gpu = partial(_passes, [write_pipelines, copy_columns_singly], [with_fragments])
        tirx.register_tir_pipeline("autotune-cuda", gpu)
        return "autotune-cuda"
    if target.kind.name != "llvm":
        return "default"
    here = architecture(target)
    functions = functions_of(target)
    name = "-".join(["autotune", *([here.name] if here else []), *(item.feature for item in functions)])
    ours: list[Rewrite] = [
        *([partial(prefetch_weights, instruction=here.prefetch)] if here and here.prefetch else []),
        *([with_tiles] if any(item.tiles for item in sets_of(target)) else []),
        *(write_around, keep_not_a_number, transpose_in_registers, keep_on_stack),
        *(join_loops, announce_extents, add_offsets),
        *(partial(with_functions, functions=item) for item in functions),
        bfloat16.keep_not_a_number,
    ]
    tirx.register_tir_pipeline(name, partial(_passes, [narrow_indices], ours))
    return name


def object_pipeline(
    target: Target, name: str = "alone", before: Callable[[IRModule], IRModule] = lambda module: module
) -> str:
    """Return the name under which TVM knows the passes of `pipeline` for objects that are linked to others.

    No program is an entry: one that is alone would be, and each object have one of that name.

    Args:
        name: What the name of the passes ends with.
        before: What is done before they lower.
    """
    whole = f"{pipeline(target)}-{name}"
    lower, host, device = tirx.get_tir_pipeline(pipeline(target))

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower_kernels(module: IRModule, _context: object) -> IRModule:
        return over_programs(lower(before(module)), lambda function: function.without_attr("tirx.is_entry_func"))

    tirx.register_tir_pipeline(whole, lambda: (lower_kernels, host, device))
    return whole


def _passes(scheduled: Sequence[Rewrite], lowered: Sequence[Rewrite]) -> tuple[Pass, Pass, Pass]:
    """TVM's passes, with ours for scheduled programs before them, and ours for lowered programs after them."""
    lower, host, device = tirx.get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower_ours(module: IRModule, _context: object) -> IRModule:
        return over_programs(lower(over_programs(module, *scheduled)), *lowered)

    return lower_ours, host, device
