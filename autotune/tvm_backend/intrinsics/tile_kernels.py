"""Kernels that compute a tile of an image from all of the reduction: as tensor intrinsics, and in lowered programs.

There is one for each geometry; its name says which, so that a schedule that is read from a log can register it. It is
LLVM's own code, which is added to a program that calls it when the program is lowered.

The elements are bytes, which are summed in 32-bit integers, or bfloat16 in buffers of uint16, summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from autotune.tvm_backend.intrinsics.bfloat16 import to_float
from autotune.tvm_backend.intrinsics.dots import accesses
from autotune.tvm_backend.isa.available import TILES
from autotune.tvm_backend.isa.values import LANES, TileProduct
from autotune.tvm_backend.programs import with_body, with_llvm_code
from autotune.tvm_backend.types import Buffer, Call, PlainTrace, PrimExpr, PrimFunc, Stmt


@dataclass(frozen=True)
class _Types:
    """The types of an image, of weights and of sums, and what makes a factor of an element."""

    data: str
    weight: str
    sums: str
    factor: Callable[[PrimExpr], PrimExpr]


# By the bytes of an element.
_TYPES = {
    1: _Types("uint8", "int8", "int32", lambda value: T.cast(value, "int32")),
    2: _Types("uint16", "uint16", "float32", to_float),
}
_SUMS = tuple(types.sums for types in _TYPES.values())
_EXTERN = "tirx.call_extern"
_FROM_ZERO = "_from_zero"


def product_named(name: str) -> TileProduct | None:
    """Return the geometry that the name of a kernel says; None if it is no such name."""
    return next((product for kind in TILES if (product := kind.of(name)) is not None), None)


def register_named(trace: PlainTrace) -> None:
    """Register the intrinsics that a trace names."""
    for kind, _, attributes, _ in trace[0]:
        if kind == "Tensorize":
            register_kernel(str(attributes[0]))


def register_kernel(name: str) -> bool:
    """Register the intrinsic of this name, if it is one of these. Return whether it is."""
    product = product_named(name)
    if product is None or not product.fits():
        return False
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, _described(product), _implemented(product))
    return True


def _described(product: TileProduct) -> PrimFunc:
    """What a kernel computes. A loop of one iteration has no variable of the block, as in what TVM compares it with."""
    extents = (product.rows, product.columns, product.chunks, LANES)
    reduced = (product.high, product.wide, product.inner, product.lanes // product.word, product.word)
    factor = _TYPES[product.size].factor
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        data, weight, sums = _operands(product)
        with T.sblock("root"):
            accesses(data, weight, sums)
            kinds = [*(T.axis.spatial for _ in extents), *(T.axis.reduce for _ in reduced)]
            axes = list(zip(kinds, (*extents, *reduced), strict=True))
            with T.grid(*(extent for _, extent in axes)) as loops, T.sblock("update"):
                bound = [
                    kind(extent, loop) if extent > 1 else 0 for (kind, extent), loop in zip(axes, loops, strict=True)
                ]
                y, x, chunk, lane, down, right, inner, word, byte = bound
                position = (
                    y * product.step_y + down * product.gap,
                    x * product.step_x + right,
                    inner,
                    word * product.word + byte,
                )
                one = factor(data[position])
                other = factor(weight[chunk, down, right, inner, word, lane, byte])
                T.reads(sums[y, x, chunk, lane], data[position], weight[chunk, down, right, inner, word, lane, byte])
                T.writes(sums[y, x, chunk, lane])
                T.buffer_store(sums, sums[y, x, chunk, lane] + one * other, [y, x, chunk, lane])
    return builder.get()


def _implemented(product: TileProduct) -> PrimFunc:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        data, weight, sums = _operands(product)
        with T.sblock("root"):
            accesses(data, weight, sums)
            pointers = data.access_ptr("r"), weight.access_ptr("r"), sums.access_ptr("rw")
            T.evaluate(T.call_extern("int32", product.name, *pointers, T.cast(data.strides[0], "int64") * product.size))
    return builder.get()


def _operands(product: TileProduct) -> tuple[Buffer, Buffer, Buffer]:
    """The image, the weights and the sums. Rows of the image lie apart; what is in a row lies together."""
    pixel = product.inner * product.lanes
    words = (product.inner, product.lanes // product.word, LANES, product.word)
    window = (product.chunks, product.high, product.wide, *words)
    sums = (product.rows, product.columns, product.chunks, LANES)
    handles = [T.arg(name, T.handle()) for name in "abc"]
    strides = [T.int32(), pixel, product.lanes, 1]
    elements = _TYPES[product.size]
    return (
        T.match_buffer(handles[0], _region(product), elements.data, offset_factor=1, strides=strides),
        T.match_buffer(handles[1], window, elements.weight, offset_factor=1),
        T.match_buffer(handles[2], sums, elements.sums, offset_factor=1),
    )


def _region(product: TileProduct) -> tuple[int, int, int, int]:
    """The part of the image that a tile depends on."""
    down = (product.rows - 1) * product.step_y + (product.high - 1) * product.gap + 1
    right = (product.columns - 1) * product.step_x + product.wide
    return down, right, product.inner, product.lanes


def with_tiles(function: PrimFunc) -> PrimFunc:
    """Add the code of the kernels that a lowered program calls."""
    products = _called_in(function.body)
    if not products:
        return function
    body = _without_zeros(function.body)
    body = _configured(body) if products[0].begin else body
    declarations = dict.fromkeys(product.declarations for product in products)
    return with_llvm_code(function, body, "".join([*declarations, *(product.code(_FROM_ZERO) for product in products)]))


def _without_zeros(statement: Stmt) -> Stmt:
    """Let kernels begin with sums of zero, in place of those that a loop has just set to zero."""
    match type(statement).__name__:
        case "SeqStmt":
            items = _begun([_without_zeros(item) for item in statement.seq])
            return tirx.SeqStmt(items) if len(items) > 1 else items[0]
        case "AttrStmt" | "For":
            return with_body(statement, _without_zeros(statement.body))
    return statement


def _begun(items: list[Stmt]) -> list[Stmt]:
    """Statements in a row, without those that set to zero what the next one adds up. Bindings may lie between."""
    statements: list[Stmt] = []
    for item in items:
        before = [index for index, earlier in enumerate(statements) if type(earlier).__name__ != "Bind"]
        if (call := _kernel_call(item)) is not None and before and _sets_to_zero(statements[before[-1]]):
            del statements[before[-1]]
            item = _renamed(call)
        statements.append(item)
    return statements


def _kernel_call(statement: Stmt) -> Call | None:
    """The call of a kernel that a statement is; None if it is another statement."""
    call: Call = getattr(statement, "value", None) if type(statement).__name__ == "Evaluate" else None
    if getattr(getattr(call, "op", None), "name", "") != _EXTERN:
        return None
    return call if product_named(str(getattr(call.args[0], "value", ""))) is not None else None


def _renamed(call: Call) -> Stmt:
    name, *operands = call.args
    return tirx.Evaluate(tirx.call_extern("int32", str(name.value) + _FROM_ZERO, *operands))


def _sets_to_zero(statement: Stmt) -> bool:
    """Whether a statement does nothing but store zeros of sums."""
    match type(statement).__name__:
        case "SeqStmt":
            return all(map(_sets_to_zero, statement.seq))
        case "For":
            return _sets_to_zero(statement.body)
        case "BufferStore":
            value = statement.value.value if isinstance(statement.value, tirx.Broadcast) else statement.value
            return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0 and value.ty.dtype in _SUMS
    return False


def _configured(statement: Stmt) -> Stmt:
    """Configure the tiles at the start of each iteration of a parallel loop, and free them at its end."""
    products = _called_in(statement)
    match type(statement).__name__:
        case "SeqStmt" if products:
            return tirx.SeqStmt([_configured(item) for item in statement.seq])
        case "AttrStmt" if products:
            return with_body(statement, _configured(statement.body))
        case "For" if products and statement.kind == tirx.ForKind.PARALLEL:
            return with_body(statement, _between(products[0], statement.body))
    return _between(products[0], statement) if products else statement


def _between(product: TileProduct, body: Stmt) -> Stmt:
    """A statement with the tiles of a kernel configured."""
    begin, end = (tirx.Evaluate(tirx.call_extern("int32", name)) for name in (product.begin, product.end))
    return tirx.SeqStmt([begin, body, end])


def _called_in(statement: Stmt) -> list[TileProduct]:
    """The kernels that a statement calls, in the order of their names."""
    names: set[str] = set()

    def look(call: Call) -> None:
        if getattr(call.op, "name", "") == _EXTERN:
            names.add(str(getattr(call.args[0], "value", "")).removesuffix(_FROM_ZERO))

    tvm_ffi.structural_walk(statement, ((relax.Call, look),))
    return [product for product in map(product_named, sorted(names)) if product is not None]
