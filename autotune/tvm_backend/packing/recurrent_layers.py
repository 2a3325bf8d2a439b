"""Give recurrent layers the kernel that suits the target: weights in blocks of vectors, and sums in its registers."""

from __future__ import annotations

from functools import partial

import msgspec
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.intrinsics.dots import channel_at
from autotune.tvm_backend.isa.available import best_dot
from autotune.tvm_backend.isa.values import WORD, Dot
from autotune.tvm_backend.operators.recurrent.kernel import recurrent_kernel
from autotune.tvm_backend.operators.recurrent.layer import LAYER, WEIGHTS, RecurrentLayer
from autotune.tvm_backend.operators.recurrent.tile import Tile, tile_for
from autotune.tvm_backend.types import Expr, IRModule, Target


def pack_recurrent_layers(
    mod: IRModule, registers: tuple[int, int], cores: int = 1, target: Target | None = None
) -> IRModule:
    """Rewrite `main` so that recurrent layers are computed by vectors.

    Args:
        mod: A module as imported.
        registers: Lanes of a vector register, and how many of them a core has.
        cores: How many threads there are.
        target: The target, whose instructions layers on 8-bit weights use; None for no special ones.

    Returns:
        The rewritten module, or `mod` if it has no recurrent layers.
    """
    if not any(LAYER in (function.attrs or {}) for function in mod.functions.values()):
        return mod
    dot = None if target is None else best_dot(target, "integers")
    return rewrite_and_clean(mod, partial(_Packer, registers=registers, cores=cores, dot=dot))


class _Packer(PlainRewriter):
    def __init__(self, mod: IRModule, registers: tuple[int, int], cores: int, dot: Dot | None) -> None:
        super().__init__(mod)
        self._dot = dot
        self._registers = registers
        self._cores = cores

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.call_tir":
            return None
        text = (self.mod[value.args[0]].attrs or {}).get(LAYER)
        if text is None:
            return None
        layer = msgspec.json.decode(str(text), type=RecurrentLayer)
        tile = tile_for(layer, self._registers, self._cores, self._dot if layer.rounded else None)
        operands = [self.leaf(item) for item in value.args[1].fields]
        pack = self._packed_bytes if layer.rounded else self._packed
        operands[WEIGHTS] = pack(operands[WEIGHTS], tile)
        function = self.builder.add_func(recurrent_kernel(layer, tile), f"{layer.kind.lower()}_steps")
        return relax.call_tir(function, operands, out_ty=list(value.ty.fields))

    def _packed(self, weights: Expr, tile: Tile) -> Expr:
        """Recurrent weights in the blocks of a tile."""
        directions, padded, hidden, gates, _ = static_shape(weights)
        width = tile.width
        blocks = self.emit(relax.op.reshape(weights, (directions, padded // width, width, hidden, gates)))
        return self.emit(relax.op.permute_dims(blocks, [0, 1, 3, 4, 2]))

    def _packed_bytes(self, weights: Expr, tile: Tile) -> Expr:
        """Recurrent weights of 8 bits in the blocks of a tile."""
        directions, padded, words, gates, _ = static_shape(weights)
        width = tile.width
        if tile.dot is not None and tile.dot.words:
            order = [channel_at(position) for position in range(WORD)]
            weights = self.emit(relax.op.take(weights, relax.const(order, "int64"), axis=4))
        blocks = self.emit(relax.op.reshape(weights, (directions, padded // width, width, words, gates, WORD)))
        moved = self.emit(relax.op.permute_dims(blocks, [0, 1, 3, 4, 2, 5]))
        return self.emit(relax.op.reshape(moved, (directions, padded // width, words, gates, width * WORD)))
