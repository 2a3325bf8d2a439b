"""Running sums and products become kernels that go down vectors of columns; TVM's go down single elements."""

from __future__ import annotations

from math import prod

from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.operators.running_columns import Running, running_kernel
from autotune.tvm_backend.types import Expr, IRModule

_NAMES = {"relax.cumsum": "running_sum", "relax.cumprod": "running_product"}


def replace_running_sums(mod: IRModule) -> IRModule:
    """Rewrite `main` so that running sums and products along an axis are scheduled programs.

    Args:
        mod: A module before TVM chooses its own programs for them, for a CPU.
    """
    return rewrite_and_clean(mod, _Replacer)


class _Replacer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        name = _NAMES.get(op_name(value))
        shape = static_shape(value)
        if name is None or value.attrs.axis is None or not shape or not prod(shape):
            return None
        axis = int(value.attrs.axis) % len(shape)
        across = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        read = str(value.args[0].ty.dtype)
        written = str(value.ty.dtype)
        running = Running(across, read, written, name == "running_product", bool(value.attrs.exclusive))
        data = self.emit(relax.op.reshape(self.leaf(value.args[0]), across))
        return relax.op.reshape(self.kernel(running_kernel(running), name, [data], across, written), shape)
