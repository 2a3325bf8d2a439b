"""What follows a product element by element, as one expression, so that one kernel computes all of it.

The graph's operators are kept as nodes until somebody needs their value. A kernel then computes the node that is
needed, from as much of the graph before it as nobody else needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from autotune.tvm_backend.types import Expr, PrimExpr, TensorExpr, Var

_DTYPE = "float32"


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
        root: The variable.
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


def _number(value: float) -> PrimExpr:
    return tirx.const(value, _DTYPE)


def _sigmoid(x: PrimExpr) -> PrimExpr:
    return _number(1.0) / (_number(1.0) + tirx.exp(-x))


# erf(x) / x as a polynomial of x**2 for |x| <= 3, to 1.7e-5: least squares weighted by the errors, repeatedly (Lawson).
_ERF = (
    1.1282684, -0.37531484, 0.11107927, -0.025102814, 0.004235408, -0.00051103237, 4.1059936e-05, -1.9447821e-06,
    4.0740959e-08,
)  # fmt: skip
_ERF_IS_ONE = 3.0


def _erf(x: PrimExpr) -> PrimExpr:
    """The error function within 3e-5, which is little beside the rounding of the result, in a third of the time."""
    near = _clip(x, _number(-_ERF_IS_ONE), _number(_ERF_IS_ONE))
    square = near * near
    total = _number(_ERF[-1])
    for coefficient in reversed(_ERF[:-1]):
        total = total * square + _number(coefficient)
    return near * total


def _clip(x: PrimExpr, low: PrimExpr, high: PrimExpr) -> PrimExpr:
    return te.max(te.min(x, high), low)


def _leaky(x: PrimExpr, slope: PrimExpr) -> PrimExpr:
    return tirx.Select(x > _number(0.0), x, x * slope)


# By the operator of the graph. Those with numbers among their arguments take them as operands.
FUNCTIONS: Mapping[str, Callable[..., PrimExpr]] = {
    "relax.add": lambda x, y: x + y,
    "relax.clip": _clip,
    "relax.divide": lambda x, y: x / y,
    "relax.erf": _erf,
    "relax.maximum": te.max,
    "relax.minimum": te.min,
    "relax.multiply": lambda x, y: x * y,
    "relax.nn.leakyrelu": _leaky,
    "relax.nn.relu": lambda x: te.max(x, _number(0.0)),
    "relax.nn.relu6": lambda x: _clip(x, _number(0.0), _number(6.0)),
    "relax.nn.silu": lambda x: x * _sigmoid(x),
    "relax.sigmoid": _sigmoid,
    "relax.subtract": lambda x, y: x - y,
    "relax.tanh": tirx.tanh,
}
