"""Pack the constant weights of matrix products, so that a kernel reads them one after the other."""

from __future__ import annotations

from math import prod

from tvm import relax

from autotune.network_plan.plan import NOTHING, Algorithm, Plan
from autotune.tvm_backend.expressions import (
    constant_of,
    float_dtype,
    is_tensor_constant,
    op_name,
    static_shape,
    values_of,
)
from autotune.tvm_backend.graph.blocks import ALGORITHMS, operator_of
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.operators.packed_product import PACKED_PRODUCT, pack_columns, te_product
from autotune.tvm_backend.types import Call, Expr, IRModule, Var

_BLOCKS = (16, 8)  # the elements of a vector register, or twice that; the first that divides the columns
_MIN_PADDED = 8  # chunks that a matrix must have for the last one to be padded for a single row, too
_FEW = 8  # rows, and columns


def pack_products(mod: IRModule, plan: Plan = NOTHING) -> IRModule:
    """Rewrite `main` so that products with constant matrices read them packed.

    A matrix (K, N) packed with a block b is (ceil(N / b), K, b): column n is in chunk n // b, lane n % b. Where rows
    of a plain matrix are far apart, every row that a tile reads is a page and a cache line of its own. Zeros fill the
    last chunk of a wide matrix, such as that of a vocabulary, or one of several rows, and a slice drops their products.

    Args:
        mod: A module before LegalizeOps, its constants folded; parameters of layers are relax constants.
        plan: Says which products do so, by the names of `name_operators`.

    Raises:
        BadInput: The plan has an algorithm for a product that is for convolutions.
    """
    return rewrite_and_clean(mod, lambda module: _WeightPacker(module, plan))


class _WeightPacker(PlainRewriter):
    """Packs each matrix once: the steps of a recurrent network share their weights."""

    def __init__(self, mod: IRModule, plan: Plan) -> None:
        super().__init__(mod)
        self._weights: dict[Var, Expr] = {}
        self._var: Var = None
        self._plan = plan
        self._wanted = plan.algorithms()
        self._chosen: dict[str, Algorithm] = {}

    def run(self) -> IRModule:
        mod = super().run()
        before = (self.function.attrs or {}).get(ALGORITHMS, {})
        mod["main"] = mod["main"].with_attr({ALGORITHMS: {**dict(before), **self._chosen}})
        return mod

    def visit(self, var: Var, value: Expr) -> None:
        self._var = var
        super().visit(var, value)

    def replace(self, value: Expr) -> Expr | None:
        if not _is_product(value):
            return None
        operator = operator_of(self._var)
        *rows, columns = static_shape(value)
        block = _block(prod(rows), columns)
        wanted = self._wanted.get(operator, "packed" if block else "plain")
        if wanted not in ("packed", "plain"):
            raise self._plan.refusal(operator, f"{wanted} is for convolutions; a product is packed or plain")
        self._chosen[operator] = wanted
        return self._packed(value, block or _BLOCKS[-1]) if wanted == "packed" else None

    def _packed(self, call: Call, block: int) -> Expr:
        data, matrix = call.args
        if matrix not in self._weights:
            self._weights[matrix] = constant_of(pack_columns(values_of(matrix), block), str(matrix.ty.dtype))
        weight = self._weights[matrix]
        product = self.builder.call_te(te_product, self.leaf(data), weight, primfunc_name_hint=PACKED_PRODUCT)
        *rows, columns = static_shape(call)
        filled = static_shape(weight)[0] * block
        result = relax.op.reshape(self.builder.emit(product, self._var.name), (*rows, filled))
        if filled == columns:
            return result
        return relax.op.strided_slice(self.builder.emit(result), axes=[len(rows)], begin=[0], end=[columns])


def _block(rows: int, columns: int) -> int:
    """The block for a product of so many rows and columns; 0 where a plain matrix is read as fast.

    Vectors do not fit into odd columns. Padded to whole ones, a matrix is read several times faster, if it is read for
    more than a few rows.
    """
    exact = next((block for block in _BLOCKS if columns % block == 0), 0)
    if exact or columns >= _MIN_PADDED * _BLOCKS[0]:
        return exact or _BLOCKS[0]
    is_padded = rows >= _FEW and columns > _FEW
    return min(_BLOCKS, key=lambda block: -(-columns // block) * block) if is_padded else 0


def _is_product(value: Expr) -> bool:
    """Whether a value is a product of a floating-point tensor with a constant matrix."""
    if op_name(value) != "relax.matmul" or not is_tensor_constant(value.args[1]):
        return False
    data, weight = map(static_shape, value.args)
    dtypes = {float_dtype(item) for item in (*value.args, value)}
    same_type = len(dtypes) == 1 and None not in dtypes
    return same_type and len(data) >= 2 and len(weight) == 2 and prod(data) > 0 and prod(weight) > 0
