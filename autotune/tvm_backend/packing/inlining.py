"""What follows a product element by element, as one expression, so that one kernel computes all of it.

The graph's operators are kept as nodes until somebody needs their value. A kernel then computes the node that is
needed, from as much of the graph before it as nobody else needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from autotune.tvm_backend.types import Expr, PrimExpr, TensorExpr, Var


@dataclass(frozen=True, eq=False)
class Elementwise:
    """An operator on numbers.

    Attributes:
        function: Computes an element of the result from those of the operands.
        operands: Variables of the graph, constants, and numbers.
    """

    function: Callable[..., PrimExpr]
    operands: tuple[Expr | float, ...]


@dataclass(frozen=True, eq=False)
class ProductNode:
    """A convolution or a product of matrices.

    Attributes:
        name: Of its kernel.
        operands: What its kernel reads, in its order: the image, and packed weights.
        sums: Makes the tensor expression of its sums from placeholders for the operands.
    """

    name: str
    operands: Callable[[], Sequence[Expr]]
    sums: Callable[..., TensorExpr]


@dataclass(frozen=True, eq=False)
class KernelNode:
    """Any other operator, which has a kernel of its own. `call` emits it, and returns the image that it makes."""

    call: Callable[[], Expr]


@dataclass(frozen=True, eq=False)
class Same:
    """An operator whose result is packed as its operand is."""

    operand: Var


Node = Elementwise | ProductNode | KernelNode | Same


def inlined(root: Var, nodes: Mapping[Var, Node], fits: Callable[[Var], bool], uses: Mapping[Var, int]) -> list[Var]:
    """Return the variables that the kernel of a variable computes itself: those before it that only it needs.

    There is one product among them at most, the last one.

    Args:
        nodes: What computes each variable, in the order of the graph.
        fits: Whether an element of a variable may be computed where one of the root is.
        uses: How often each variable is used in the whole graph.
    """
    chosen = [root]
    references = Counter(read_by(nodes[root]))
    has_product = isinstance(nodes[root], ProductNode)
    for var in reversed(list(nodes)):  # whatever uses a variable comes after it
        if not references[var] or references[var] != uses[var] or not fits(var):
            continue
        node = nodes[var]
        if isinstance(node, KernelNode | Same) or (isinstance(node, ProductNode) and has_product):
            continue
        has_product |= isinstance(node, ProductNode)
        chosen.append(var)
        references.update(read_by(node))
    return chosen


def read_by(node: Node) -> list[Var]:
    """Return the variables that an operator reads element by element."""
    operands = node.operands if isinstance(node, Elementwise) else ()
    return [item for item in operands if isinstance(item, relax.Var)]
