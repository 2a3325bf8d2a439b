"""The CUDA C that a kernel with a pipeline has besides `pipeline.cuh`: where the elements of the operands lie."""

from __future__ import annotations

import hashlib
import math
from functools import partial

from autotune.tvm_backend.cuda.index_code import code_of
from autotune.tvm_backend.cuda.pipeline_tiles import INSTRUCTION, MARK, Tiles
from autotune.tvm_backend.cuda.products import Factor, Product, Role, analyzer_of

_MAX_INT = 2**31
_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}
_SUMS = {"float32": "float", "int32": "int"}
_INLINE = "__device__ __forceinline__"
_OPERAND = """\
struct Of{name} {{
  static constexpr int TOGETHER = {together};
  const {pointer}* data;
  {index} batch;
  {inline} bool inside(int side, int term) const {{ return {condition}; }}
  {inline} {index} offset({index} side, {index} term) const {{ return {offset}; }}
  {inline} unsigned bits({index} offset) const {{ return data[offset]; }}
}};
"""
_PRODUCT = """\
namespace {name}_of {{
{operands}}}
static {inline} void {name}(void* shared, const void* left, const void* right, int batch, int row, int column) {{
  using namespace {name}_of;
  const auto* a = static_cast<const {pointer}*>(left);
  const auto* b = static_cast<const {pointer}*>(right);
{body}}}
"""
_BODY = """\
  if (row >= {rows}) return;
  {mark}Pipeline<{arguments}>::run<{terms}>(shared, OfA{{a, batch}}, OfB{{b, batch}}, row, column);
"""
_RESULTS = """\
static {inline} void {name}({kind}* results, const void* shared, int row, int column) {{
  {mark}take<{columns}, {count}>(results, shared, row, column);
}}
"""


def source_of(product: Product, tiles: Tiles) -> tuple[str, str]:
    """Return the name and the code of the function that computes a tile of a product."""
    operands = _operand("A", product.a, product, "row", tiles) + _operand("B", product.b, product, "column", tiles)
    terms = product.extents["term"]
    body = _BODY.format(mark=MARK, rows=product.extents["row"], arguments=_arguments(product, tiles), terms=terms)
    name = f"autotune_product_{hashlib.sha256((operands + body).encode()).hexdigest()[:16]}"
    pointer = _TYPES[product.element.size]
    return name, _PRODUCT.format(name=name, inline=_INLINE, operands=operands, pointer=pointer, body=body)


def _arguments(product: Product, tiles: Tiles) -> str:
    """Those of the template `Pipeline`."""
    assert tiles.warps is not None, "the tiles fit"
    numbers = [tiles.rows, tiles.columns, tiles.steps, tiles.stages, *tiles.warps]
    orders = ["true" if item.by_terms else "false" for item in (product.a, product.b)]
    return ", ".join([f"{MARK}{product.element.name}", *map(str, numbers), *orders])


def _operand(name: str, operand: Factor, product: Product, side: Role, tiles: Tiles) -> str:
    """The class that says where the elements of an operand lie."""
    names: dict[object, str] = {variable: role for role, variable in product.variables.items()}
    names[operand.side] = "side"
    analyzer = analyzer_of({variable: product.extents[role] for role, variable in product.variables.items()})
    code = partial(code_of, names=names, analyzer=analyzer)
    conditions = _bounds(product, side, tiles)
    if operand.condition is not None:
        conditions.append(code(operand.condition))
    elements = math.prod(int(extent) for extent in operand.tensor.shape)
    return _OPERAND.format(
        name=name,
        together=operand.together,
        pointer=_TYPES[product.element.size],
        inline=_INLINE,
        condition=" && ".join(conditions) or "true",
        index="int" if elements < _MAX_INT else "long long",
        offset=code(analyzer.simplify(operand.offset)),
    )


def _bounds(product: Product, side: Role, tiles: Tiles) -> list[str]:
    """The conditions that hold in no tile but the last ones, which may reach beyond the product."""
    of_side = tiles.rows if side == "row" else tiles.columns
    of_terms = tiles.steps * INSTRUCTION // product.element.size
    sizes: tuple[tuple[str, Role, int], ...] = (("side", side, of_side), ("term", "term", of_terms))
    return [f"{name} < {product.extents[role]}" for name, role, size in sizes if product.extents[role] % size]


def source_of_results(tiles: Tiles, count: int, sums: str) -> tuple[str, str]:
    """Return the name and the code of the function that takes results which lie together."""
    kind = _SUMS[sums]
    name = f"autotune_results_{kind}_{count}_of_{tiles.columns}"
    code = _RESULTS.format(inline=_INLINE, name=name, kind=kind, mark=MARK, columns=tiles.columns, count=count)
    return name, code
