"""Give recurrent layers the kernel that suits the target: weights in blocks of vectors, and sums in its registers."""

from __future__ import annotations

from functools import partial

import msgspec
from tvm import relax

from autotune.tvm_backend.passes.rewrite import PlainRewriter, op_name, rewrite_and_clean, static_shape
from autotune.tvm_backend.recurrent.kernel import recurrent_kernel
from autotune.tvm_backend.recurrent.layer import Layer
from autotune.tvm_backend.recurrent.operators import LAYER, WEIGHTS
from autotune.tvm_backend.recurrent.tile import tile_for
from autotune.tvm_backend.types import Expr, IRModule


def pack_recurrent_layers(mod: IRModule, registers: tuple[int, int], cores: int = 1) -> IRModule:
    """Rewrite `main` so that recurrent layers are computed by vectors.

    Args:
        mod: A module as imported.
        registers: Lanes of a vector register, and how many of them a core has.
        cores: How many threads there are.

    Returns:
        The rewritten module, or `mod` if it has no recurrent layers.
    """
    if not any(LAYER in (function.attrs or {}) for function in mod.functions.values()):
        return mod
    return rewrite_and_clean(mod, partial(_Packer, registers=registers, cores=cores))


class _Packer(PlainRewriter):
    def __init__(self, mod: IRModule, registers: tuple[int, int], cores: int) -> None:
        super().__init__(mod)
        self._registers = registers
        self._cores = cores

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.call_tir":
            return None
        text = (self.mod[value.args[0]].attrs or {}).get(LAYER)
        if text is None:
            return None
        layer = msgspec.json.decode(str(text), type=Layer)
        tile = tile_for(layer, self._registers, self._cores)
        operands = [self.leaf(item) for item in value.args[1].fields]
        operands[WEIGHTS] = self._packed(operands[WEIGHTS], tile.width)
        function = self.builder.add_func(recurrent_kernel(layer, tile), f"{layer.kind.lower()}_steps")
        return relax.call_tir(function, operands, out_ty=list(value.ty.fields))

    def _packed(self, weights: Expr, width: int) -> Expr:
        """Recurrent weights in blocks of so many hidden units."""
        directions, padded, hidden, gates, _ = static_shape(weights)
        blocks = self.builder.emit(relax.op.reshape(weights, (directions, padded // width, width, hidden, gates)))
        return self.builder.emit(relax.op.permute_dims(blocks, [0, 1, 3, 4, 2]))
