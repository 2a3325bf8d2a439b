"""See to it that the kernels of a model are recorded as one CUDA graph.

TVM records stretches of kernels that neither read an input nor write an output, for these are tensors of the caller. A
residual sum that reads the input, or a result that is read again, would cut the graph in two. So what several kernels
read is copied first, and what is read again is copied last. Kernels that read inputs alone come before all others, and
those that write results behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm import relax, te
from tvm.s_tir import Schedule

from autotune.tvm_backend.expressions import (
    bindings_of,
    has_fixed_sizes,
    op_name,
    readers,
    results_of,
    static_shape,
    variables,
)
from autotune.tvm_backend.graph.rewrite import PlainRewriter, is_rewritable, with_blocks, with_main
from autotune.tvm_backend.programs import finished
from autotune.tvm_backend.types import Binding, Expr, Function, IRModule, PrimFunc, Var

_KERNEL = "relax.call_tir"
_THREADS = 256


def in_one_recording(mod: IRModule) -> IRModule:
    """Rewrite `main` so that all its kernels but the first and the last ones lie together.

    Args:
        mod: A module with scheduled kernels, whose reshapes are no kernels any more: to TVM a copy is a reshape, too.
    """
    if not is_rewritable(mod) or len(mod["main"].body.blocks) != 1:
        return mod
    copied = relax.transform.CanonicalizeBindings()(_Copier(mod).run())
    return with_main(copied, _in_order(copied["main"]))


class _Copier(PlainRewriter):
    """Copies inputs that several kernels read, and outputs that kernels read."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._readers = readers(self.function)
        self._outputs = results_of(self.function)
        self._inputs = [item for item in self.function.params if self._is_copied(item)]

    def visit(self, var: Var, value: Expr) -> None:
        for parameter in self._inputs:
            self.bind(parameter, self._copy(parameter))
        self._inputs = []
        super().visit(var, value)

    def output(self, var: Var) -> Expr:
        expr = self.plain(var)
        return self._copy(expr) if var in self._readers and _is_tensor(var) else expr

    def replace(self, value: Expr) -> None:
        """Leave what is computed as it is."""

    def _is_copied(self, parameter: Var) -> bool:
        """Whether more than one kernel that reads nothing but inputs reads an input."""
        values = [value for _, value in self._readers.get(parameter, [])]
        alone = len(values) == 1 and op_name(values[0]) == _KERNEL and _reads_only(values[0], self.function.params)
        return bool(values) and not alone and _is_tensor(parameter) and parameter not in self._outputs

    def _copy(self, tensor: Expr) -> Expr:
        shape = static_shape(tensor)
        dtype = str(tensor.ty.dtype)
        return self.kernel(_copy_program(shape, dtype), "copy", [tensor], shape, dtype)


def _copy_program(shape: tuple[int, ...], dtype: str) -> PrimFunc:
    tensor = te.placeholder(shape, dtype, "tensor")
    copied = te.compute(shape, lambda *place: tensor[place], "copied")
    schedule = Schedule(te.create_prim_func([tensor, copied]))
    whole = schedule.fuse(*schedule.get_loops(schedule.get_sblock("copied")))
    block, thread = schedule.split(whole, [None, _THREADS])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return finished(schedule.mod["main"])


def _is_tensor(var: Var) -> bool:
    return isinstance(var.ty, relax.TensorType) and has_fixed_sizes(var.ty.shape) and bool(static_shape(var))


def _in_order(function: Function) -> Function:
    """Return a function with the kernels that read inputs alone first, and those that write results last."""
    (block,) = function.body.blocks
    if not isinstance(block, relax.DataflowBlock):
        return function
    outputs = results_of(function)
    read = readers(function)
    places = {item.var: _place(item, function.params, outputs, read) for item in bindings_of(function)}
    ordered = sorted(block.bindings, key=lambda item: places[item.var])
    return with_blocks(function, [relax.DataflowBlock(ordered)])


def _place(binding: Binding, inputs: Sequence[Var], outputs: set[Var], read: Collection[Var]) -> int:
    if op_name(binding.value) == _KERNEL and _reads_only(binding.value, inputs) and binding.var not in outputs:
        return 0
    return 2 if binding.var in outputs and binding.var not in read else 1


def _reads_only(value: Expr, inputs: Sequence[Var]) -> bool:
    read = set(variables(value))
    return bool(read) and read <= set(inputs)
