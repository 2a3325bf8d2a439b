"""Which blocks tensor cores can compute: sums of products, read from their tensor expressions.

An operand is an element of a tensor, or zero outside of it: the padding of an image is a condition, so that a
convolution is a product whose rows are pixels and whose terms are the weights of a filter ("implicit product").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Range, TensorLoad
from tvm.tirx.analysis import undefined_vars

from autotune.tvm_backend.programs import replaced
from autotune.tvm_backend.types import Block, Buffer, PrimExpr

Role = Literal["batch", "row", "column", "term"]
ROLES: tuple[Role, ...] = ("batch", "row", "column", "term")
PIECE = 16  # bytes of a copy, at most
MIN_PIECE = 4


@dataclass(frozen=True)
class Element:
    """A type that tensor cores multiply.

    Attributes:
        name: Of its class in `pipeline.cuh`.
        dtype, sums: The types that programs have, of operands and of sums.
        size: Bytes of an operand.
    """

    name: str
    dtype: str
    sums: str
    size: int


ELEMENTS = (
    Element("Fp16", "float16", "float32", 2),
    Element("Bf16", "bfloat16", "float32", 2),
    Element("Tf32", "float32", "float32", 4),
    Element("Int8", "int8", "int32", 1),
)
_IF_THEN_ELSE = "if_then_else"


@dataclass(frozen=True)
class Factor:
    """An element of a tensor, which is zero where the condition does not hold.

    Attributes:
        side: The variable of the rows, or of the columns.
        term: The variable of the terms.
        by_terms: Whether elements of the same row (or column) lie together, and not those of the same term.
        together: How many of them a copy may take: 1 where they lie apart.
    """

    tensor: Buffer
    offset: PrimExpr
    condition: PrimExpr | None
    side: PrimExpr
    term: PrimExpr
    by_terms: bool
    together: int


@dataclass(frozen=True)
class Product:
    """A block that tensor cores can compute, with one variable of each role; of the batch there may be none.

    Attributes:
        variables, extents: Of the roles that it has.
        a, b: The operands: rows by terms, and terms by columns.
    """

    element: Element
    variables: dict[Role, PrimExpr]
    extents: dict[Role, int]
    a: Factor
    b: Factor


def roles_of(block: Block) -> list[Role] | None:
    """Return what each variable of a block that sums products is; None where the block does not.

    Rows are those of the first operand, and columns those of the second. What both depend on is a batch.
    """
    factors = _factors(block)
    if factors is None or not all(_parts(item) for item in factors):
        return None
    first, second = (set(undefined_vars(item)) for item in factors)
    roles: list[Role] = []
    for item in block.iter_vars:
        if not isinstance(item.dom.extent, tirx.IntImm):
            return None
        if int(item.iter_type) != 0:
            roles.append("term")
        elif item.var in first and item.var in second:
            roles.append("batch")
        else:
            roles.append("column" if item.var in second else "row")
    complete = {"row", "column", "term"} <= set(roles)
    return roles if complete and roles == sorted(roles, key=ROLES.index) else None


def element_of(block: Block) -> Element | None:
    """Return the type that a block which sums products multiplies; None where tensor cores have none for it."""
    factors = _factors(block)
    elements = [part for item in factors or () if (part := _parts(item)) is not None]
    if len(elements) != 2:
        return None
    dtypes = {str(load.source.dtype) for load, _ in elements}
    sums = str(block.writes[0].source.dtype)
    return next((item for item in ELEMENTS if dtypes == {item.dtype} and sums == item.sums), None)


def product_of(block: Block) -> Product | None:
    """Read a block that has at most one variable of each role; None where it is no such product."""
    roles = roles_of(block)
    element = element_of(block)
    if roles is None or element is None or len(set(roles)) < len(roles):
        return None
    factors = _factors(block)
    assert factors is not None, "its roles are known"
    variables = {role: item.var for role, item in zip(roles, block.iter_vars, strict=True)}
    extents = {role: int(item.dom.extent) for role, item in zip(roles, block.iter_vars, strict=True)}
    ranges = {variables[role]: extent for role, extent in extents.items()}
    sides = (variables["row"], variables["column"])
    a, b = (
        _operand(factor, side, variables["term"], ranges, element.size)
        for factor, side in zip(factors, sides, strict=True)
    )
    return Product(element, variables, extents, a, b)


def _factors(block: Block) -> tuple[PrimExpr, PrimExpr] | None:
    """The factors of what a block adds to its result."""
    value: Any = getattr(block.body, "value", None)
    product: Any = getattr(value, "b", None)
    if type(value).__name__ != "Add" or type(product).__name__ != "Mul" or not isinstance(value.a, TensorLoad):
        return None
    return product.a, product.b


def _parts(factor: PrimExpr) -> tuple[Any, PrimExpr | None] | None:
    """The element that a factor is, and the condition under which it is not zero; None where it is something else."""
    while type(factor).__name__ == "Cast":
        factor = factor.value
    if isinstance(factor, TensorLoad):
        return factor, None
    if not str(getattr(getattr(factor, "op", None), "name", "")).endswith(_IF_THEN_ELSE):
        return None
    condition, value, other = factor.args
    inner = _parts(value)
    if inner is None or not isinstance(other, tirx.IntImm | tirx.FloatImm) or other.value != 0:
        return None
    load, within = inner
    return load, condition if within is None else tirx.all(condition, within)


def _operand(factor: PrimExpr, side: PrimExpr, term: PrimExpr, ranges: dict[PrimExpr, int], size: int) -> Factor:
    element = _parts(factor)
    assert element is not None, "its roles are known"
    load, condition = element
    offset = _offset(load)
    widths = {
        by_terms: _together(offset, condition, term if by_terms else side, ranges, size) for by_terms in (True, False)
    }
    by_terms = size == 1 or widths[True] >= widths[False]
    return Factor(load.source, offset, condition, side, term, by_terms, widths[by_terms])


def _offset(load: Any) -> PrimExpr:
    offset: PrimExpr = 0
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        offset = offset * extent + index
    return offset


def _together(
    offset: PrimExpr, condition: PrimExpr | None, variable: PrimExpr, ranges: dict[PrimExpr, int], size: int
) -> int:
    """How many elements lie together along a variable, from a multiple of that many on: at most 16 bytes."""
    return next((width for width in _widths(size) if _is_together(offset, condition, variable, ranges, width)), 1)


def _widths(size: int) -> Iterator[int]:
    piece = PIECE
    while piece >= max(MIN_PIECE, size):
        yield piece // size
        piece //= 2


def _is_together(
    offset: PrimExpr, condition: PrimExpr | None, variable: PrimExpr, ranges: dict[PrimExpr, int], width: int
) -> bool:
    if ranges[variable] % width:
        return False
    analyzer = analyzer_of(ranges)
    group = tirx.Var("group", variable.ty.dtype)
    analyzer.bind(group, Range(0, ranges[variable] // width))

    def at(expression: PrimExpr, place: int) -> PrimExpr:
        return analyzer.simplify(replaced(expression, variable, group * width + place))

    first = at(offset, 0)
    aligned = analyzer.modular_set(first)
    if aligned.coeff % width or aligned.base % width:
        return False
    if any(not analyzer.can_prove_equal(at(offset, place) - first, place) for place in range(1, width)):
        return False
    if condition is None:
        return True
    holds = at(condition, 0)
    return all(tvm_ffi.structural_equal(at(condition, place), holds) for place in range(1, width))


def analyzer_of(ranges: dict[PrimExpr, int]) -> sym.Analyzer:
    """Return an analyzer of expressions that knows the extents of variables, which begin at zero."""
    analyzer = sym.Analyzer()
    for variable, extent in ranges.items():
        analyzer.bind(variable, Range(0, extent))
    return analyzer


def extents_by_role(roles: Sequence[Role], block: Block) -> dict[Role, list[int]]:
    """Return the extents of the variables of a block, by what they are."""
    extents: dict[Role, list[int]] = {role: [] for role in ROLES}
    for role, item in zip(roles, block.iter_vars, strict=True):
        extents[role].append(int(item.dom.extent))
    return extents
