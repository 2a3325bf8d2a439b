"""The graph of a network while its tensors are packed: one keeper of their encodings, and one walk over its operators.

The field calls this data tiling. A tensor is held in as many encodings as operators have asked for. One that is missing
is made from another one, once. What is packed goes through elementwise operators, and through those that only move
pixels and channels, without becoming plain in between.

There is a subclass for each element type. It says how an encoding is made, and what products, elementwise operators and
moves become.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from tvm import relax

from autotune.tvm_backend.expressions import op_name, readers, static_shape
from autotune.tvm_backend.graph.rewrite import Rewriter
from autotune.tvm_backend.packing.element_functions import FUNCTIONS
from autotune.tvm_backend.packing.encodings import PLAIN, Encoding, Forms, Result
from autotune.tvm_backend.packing.image_operators import MOVES, PART, ImageOperator
from autotune.tvm_backend.types import Call, Expr, IRModule, Var


class PackedGraph(Rewriter):
    """Rebuilds `main`, and keeps its tensors in the encodings that operators ask for.

    Attributes:
        handlers: What becomes of an operator, by its name.
        values: What each old variable is bound to.
    """

    local = ("_forms",)
    handlers: ClassVar[Mapping[str, Handler]] = {}

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.values: dict[Var, Expr] = {}
        self._forms: dict[Var, Forms] = {}
        self._deferred: dict[Var, Callable[[Encoding], Expr]] = {}
        self._readers = readers(self.function)

    def visit(self, var: Var, value: Expr) -> None:
        self.values[var] = value
        if var in self._forms:  # it has been computed before its turn
            return
        forms = self.packed_forms(Result(var, static_shape(value)), value)
        if forms is None:
            forms = {PLAIN: self.builder.emit(self.rebuild(value), var.name)}
        self._forms[var] = {encoding: self._named(expr, var) for encoding, expr in forms.items()}

    def _named(self, expr: Expr, var: Var) -> Expr:
        return expr if isinstance(expr, relax.Var) else self.builder.emit(expr, var.name)

    def packed_forms(self, result: Result, value: Expr) -> Forms | None:
        """Return the encodings in which a value is computed, none if it is deferred; None if it stays as it is."""
        handler = self.handlers.get(PART if isinstance(value, relax.TupleGetItem) else op_name(value))
        return handler(self, value, result) if handler is not None else None

    def elementwise(self, call: Call, result: Result) -> Forms | None:
        """Return what becomes of an operator that computes each element from those at the same place."""
        raise NotImplementedError

    def moved(self, operator: ImageOperator, result: Result) -> Forms | None:
        """Return what becomes of an operator that moves or pools the pixels or channels of images."""
        raise NotImplementedError

    def converted(self, var: Var, encoding: Encoding) -> Expr:
        """Make an encoding of a variable from one that there is."""
        raise NotImplementedError

    def form(self, var: Var, encoding: Encoding) -> Expr:
        """Return a variable in an encoding. It is made if there is none yet."""
        forms = self.forms(var)
        if encoding not in forms:
            forms[encoding] = self.converted(var, encoding) if forms else self._deferred[var](encoding)
        return forms[encoding]

    def forms(self, var: Var) -> Forms:
        """Return the encodings of a variable that there are so far; of a parameter it is that of the graph."""
        return self._forms.setdefault(var, {PLAIN: var})

    def plain(self, var: Var) -> Expr:
        return self.form(var, PLAIN)

    def bind(self, var: Var, expr: Expr) -> None:
        self._deferred.pop(var, None)
        self._forms[var] = {PLAIN: expr}

    def defer(self, var: Var, compute: Callable[[Encoding], Expr]) -> Forms:
        """Compute a variable when somebody asks for it, in the encoding that is asked for first."""
        self._deferred[var] = compute
        return {}

    def value(self, expr: Expr) -> Expr:
        """Return what a variable is bound to, or the expression itself."""
        return self.values.get(expr, expr) if isinstance(expr, relax.Var) else expr


# From the graph, an operator and the result that the graph says of it, to the encodings in which it is computed.
Handler: TypeAlias = Callable[[Any, Expr, Any], "Forms | None"]


def _elementwise(graph: PackedGraph, call: Call, result: Result) -> Forms | None:
    return graph.elementwise(call, result)


def _moved(graph: PackedGraph, value: Expr, result: Result) -> Forms | None:
    recognise = MOVES[PART if isinstance(value, relax.TupleGetItem) else op_name(value)]
    operator = recognise(value, graph.value)
    return graph.moved(operator, result) if operator is not None else None


# Those that all element types have: what a subclass adds to them stands in its own table.
OPERATORS: Mapping[str, Handler] = {**dict.fromkeys(FUNCTIONS, _elementwise), **dict.fromkeys(MOVES, _moved)}
