"""The passes that lower a scheduled program to what LLVM or CUDA compiles: those of TVM, and ours around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import tvm
import tvm_ffi
from tvm import tirx

from autotune.tvm_backend.cuda.tensor_pipeline import write_pipelines
from autotune.tvm_backend.cuda.tf32 import with_fragments
from autotune.tvm_backend.intrinsics import bfloat16
from autotune.tvm_backend.intrinsics.llvm_code import functions_of, with_functions
from autotune.tvm_backend.intrinsics.tile_kernels import with_tiles
from autotune.tvm_backend.isa.available import architecture, sets_of
from autotune.tvm_backend.kernels.flat_formulas import write_around
from autotune.tvm_backend.kernels.not_a_number import keep_not_a_number
from autotune.tvm_backend.kernels.prefetch import prefetch_weights
from autotune.tvm_backend.kernels.strided_copies import copy_columns_singly
from autotune.tvm_backend.kernels.tensor_offsets import add_offsets
from autotune.tvm_backend.programs import over_programs
from autotune.tvm_backend.threads.concurrent_loops import join_loops
from autotune.tvm_backend.threads.extents import announce_extents
from autotune.tvm_backend.types import IRModule, Loop, Pass, PrimFunc, Stmt, Target
from autotune.tvm_backend.untrusted_files import WHOLE_VECTORS

_MAX_ON_STACK = 8192  # bytes
_ENTRY = "tirx.is_entry_func"


def keep_on_stack(module: IRModule) -> IRModule:
    """Leave local arrays of some kilobytes on the stack, where LLVM keeps sums in registers.

    TVM would put those of 1 KiB or more on the heap. There, LLVM leaves out the stores of a loop only if it can prove
    that nothing else uses the array, which it cannot in large functions.

    Args:
        module: What TVM's passes for lowering return.
    """
    return over_programs(module, _on_stack)


def _on_stack(function: PrimFunc) -> PrimFunc:
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


def narrow_indices(module: IRModule) -> IRModule:
    """Return a module in which indices have 32 bits in programs with loops to cut where a condition begins to hold.

    TVM cuts loops with such indices only. Programs that hold indices in tensors compute under the condition.

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
    if not loops or "int64" in dtypes:
        return function
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": function}))["main"]


_ANY_CPU: tuple[Pass, ...] = (write_around, keep_not_a_number, keep_on_stack, join_loops, announce_extents, add_offsets)
_CPU: tuple[Pass, ...] = (narrow_indices,)
_GPU: tuple[Pass, ...] = (write_pipelines, copy_columns_singly)
_GPU_CODE: tuple[Pass, ...] = (with_fragments,)


def pipeline(target: Target) -> str:
    """Return the name under which TVM knows the passes for a target.

    Args:
        target: The target.
    """
    if target.kind.name == "cuda":
        tirx.register_tir_pipeline("autotune-cuda", partial(_passes, _GPU_CODE, before=_GPU))
        return "autotune-cuda"
    if target.kind.name != "llvm":
        return "default"
    here = architecture(target)
    functions = functions_of(target)
    name = "-".join(["autotune", *([here.name] if here else []), *(item.feature for item in functions)])
    ours = [
        *([partial(prefetch_weights, instruction=here.prefetch)] if here and here.prefetch else []),
        *([with_tiles] if any(item.tiles for item in sets_of(target)) else []),
        *_ANY_CPU,
        *(partial(with_functions, functions=item) for item in functions),
        bfloat16.keep_not_a_number,
    ]
    tirx.register_tir_pipeline(name, partial(_passes, tuple(ours), before=_CPU))
    return name


def pipeline_between(
    target: Target,
    name: str,
    *,
    before: Callable[[IRModule], IRModule] = lambda module: module,
    after: Callable[[IRModule], IRModule] = lambda module: module,
) -> str:
    """Register the passes of `pipeline` with others around those that lower, and return their name.

    Args:
        target: The target.
        name: What their name ends with.
        before: What is done before they lower.
        after: What is done after that.
    """
    whole = f"{pipeline(target)}-{name}"
    lower, host, device = tirx.get_tir_pipeline(pipeline(target))

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower_kernels(module: IRModule, _context: object) -> IRModule:
        return after(lower(before(module)))

    tirx.register_tir_pipeline(whole, lambda: (lower_kernels, host, device))
    return whole


def object_pipeline(target: Target) -> str:
    """Return the name under which TVM knows the passes for a program whose object is linked to others."""
    return pipeline_between(target, "alone", after=without_entry)


def without_entry(module: IRModule) -> IRModule:
    """Return a module without an entry: a program that is alone would be one, and each object have one of that name."""
    return over_programs(module, lambda function: function.without_attr(_ENTRY))


def _passes(after: tuple[Pass, ...], before: tuple[Pass, ...] = ()) -> tuple[Pass, Pass, Pass]:
    lower, host, device = tirx.get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower_ours(module: IRModule, _context: object) -> IRModule:
        for rewrite in (*before, lower, *after):
            module = rewrite(module)
        return module

    return lower_ours, host, device
