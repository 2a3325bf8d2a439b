"""Rebuild the main function of a Relax module binding by binding. The graph passes are subclasses of `Rewriter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tvm
import tvm_ffi
from tvm import relax, topi

from autotune.tvm_backend.expressions import float_dtype, has_branches, op_name, static_shape
from autotune.tvm_backend.types import BindingBlock, Expr, Function, IRModule, PrimFunc, Var


def rewrite(mod: IRModule, make: Callable[[IRModule], Rewriter]) -> IRModule:
    """Rebuild the `main` function of a module.

    Returns:
        The rewritten module, or `mod` itself if it has no `main` or `main` has branches.
    """
    return make(mod).run() if is_rewritable(mod) else mod


def is_rewritable(mod: IRModule) -> bool:
    """Return whether a module has a `main`, and `main` has no branches."""
    names = {item.name_hint for item in mod.get_global_vars()}
    return "main" in names and isinstance(mod["main"], relax.Function) and not has_branches(mod["main"])


def rewrite_and_clean(mod: IRModule, make: Callable[[IRModule], Rewriter]) -> IRModule:
    """Rebuild `main` as `rewrite` does, and drop what nothing uses any more."""
    rewritten = rewrite(mod, make)
    if rewritten is mod:
        return mod
    return relax.transform.DeadCodeElimination(["main"])(relax.transform.CanonicalizeBindings()(rewritten))


def with_blocks(function: Function, blocks: Sequence[BindingBlock]) -> Function:
    """Return a function with other blocks, and the same result."""
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(list(function.params), body, function.ret_ty, bool(function.is_pure), function.attrs)


def with_functions(mod: IRModule, change: Callable[[Function], Function]) -> IRModule:
    """Return a module with each of its functions changed, but for tensor programs."""
    functions = {
        name: change(item) if isinstance(item, relax.Function) else item for name, item in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def with_main(mod: IRModule, main: Function) -> IRModule:
    """Return a module with another `main`."""
    functions = {**dict(mod.functions.items()), mod.get_global_var("main"): main}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


class Rewriter:
    """Rebuilds `main` binding by binding. A subclass says what each binding becomes.

    The parameters, the attributes and the structure of the result stay the same.

    Attributes:
        local: The names of the dictionaries whose expressions hold only within the dataflow block that makes them.
    """

    local: ClassVar[tuple[str, ...]] = ()

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.function = mod["main"]
        others = {key: item for key, item in mod.functions.items() if key.name_hint != "main"}
        rest = tvm.IRModule(others, attrs=mod.attrs, global_infos=mod.global_infos)
        self.builder = relax.BlockBuilder(rest)

    def visit(self, var: Var, value: Expr) -> None:
        """Process a binding of the old function.

        Args:
            var: The bound variable.
        """
        raise NotImplementedError

    def plain(self, var: Var) -> Expr:
        """Return the new expression for an old variable, of the same shape and layout."""
        raise NotImplementedError

    def output(self, var: Var) -> Expr:
        """Return the new expression of an old variable that leaves its block."""
        return self.plain(var)

    def bind(self, var: Var, expr: Expr) -> None:
        """Replace all expressions for an old variable by a new one."""
        raise NotImplementedError

    def _local_copies(self) -> dict[str, Any]:
        """Return copies of what `local` names, and of the dictionaries of forms in it."""
        return {
            name: {key: dict(item) if isinstance(item, dict) else item for key, item in getattr(self, name).items()}
            for name in self.local
        }

    def run(self) -> IRModule:
        """Rebuild `main` and return the new module."""
        function = self.function
        attrs = dict(self.function.attrs or {})
        with self.builder.function("main", list(function.params), attrs, pure=bool(function.is_pure)):
            for block in function.body.blocks:
                self._block(block)
            self.builder.emit_func_output(self.leaf(function.body.body))
        return self.builder.finalize()

    def rebuild(self, value: Expr) -> Expr:
        """Return a bound value with its variables replaced by their new plain expressions."""
        if isinstance(value, relax.Call):
            return relax.Call(value.op, [self.leaf(item) for item in value.args], value.attrs, value.ty_args)
        return self.leaf(value)

    def emit(self, expr: Expr) -> Expr:
        """Bind an expression."""
        return self.builder.emit(expr)

    def kernel(self, program: PrimFunc, name: str, operands: Sequence[Expr], shape: Sequence[int], dtype: str) -> Expr:
        """Call a tensor program that has one result."""
        function = self.builder.add_func(program, name)
        return self.emit(relax.call_tir(function, list(operands), out_ty=relax.TensorType(tuple(shape), dtype)))

    def cut(self, expr: Expr, size: int) -> Expr:
        """Leave so many elements of the last axis."""
        shape = static_shape(expr)
        last = len(shape) - 1
        if shape[last] == size:
            return expr
        return self.emit(relax.op.strided_slice(expr, axes=[last], begin=[0], end=[size]))

    def unpacked(self, image: Expr, shape: tuple[int, ...]) -> Expr:
        """Return an image (N, H, W, C / b, b), whose last chunk may be filled up, as (N, C, H, W)."""
        batch, height, width, chunks, lanes = static_shape(image)
        flat = self.emit(relax.op.reshape(image, (batch, height, width, chunks * lanes)))
        cut = self.cut(flat, shape[1])
        if height == width == 1:
            return self.emit(relax.op.reshape(cut, shape))
        return self.emit(relax.op.permute_dims(cut, [0, 3, 1, 2]))

    def leaf(self, expr: Expr) -> Expr:
        """Return an argument with its variables replaced by their new plain expressions."""
        if isinstance(expr, relax.Var):
            return self.plain(expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.leaf(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.leaf(expr.tuple_value), expr.index)
        return expr

    def _block(self, block: BindingBlock) -> None:
        if not isinstance(block, relax.DataflowBlock):
            self._bindings(block)
            for binding in block.bindings:
                self.bind(binding.var, self.plain(binding.var))
            return
        before = self._local_copies()
        with self.builder.dataflow():
            self._bindings(block)
            visible = [item.var for item in block.bindings if not isinstance(item.var, relax.DataflowVar)]
            made = [self.builder.emit_output(self.output(var), var.name) for var in visible]
        for name, expressions in before.items():
            setattr(self, name, expressions)
        for var, output in zip(visible, made, strict=True):
            self.bind(var, output)

    def _bindings(self, block: BindingBlock) -> None:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                value = self.leaf(binding.value)
                self.bind(binding.var, self.builder.match_cast(value, binding.ty, binding.var.name))
            else:
                self.visit(binding.var, _lift(self.mod, binding.value))


class PlainRewriter(Rewriter):
    """A rewriter in which each old variable has one new expression, of the same shape and layout.

    Attributes:
        values: The value of each old variable so far.
    """

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.values: dict[Var, Expr] = {}
        self._new: dict[Var, Expr] = {}

    def bound(self, expr: Expr) -> Expr:
        """Return the value of an old variable; None where it has none, and for any other expression."""
        return self.values.get(expr) if isinstance(expr, relax.Var) else None

    def visit(self, var: Var, value: Expr) -> None:
        self.values[var] = value
        replaced = self.replace(value)
        self._new[var] = self.builder.emit(self.rebuild(value) if replaced is None else replaced, var.name)

    def replace(self, value: Expr) -> Expr | None:
        """Return the new expression for an old value; None if it stays as it is."""
        raise NotImplementedError

    def plain(self, var: Var) -> Expr:
        return self._new.get(var, var)

    def bind(self, var: Var, expr: Expr) -> None:
        self._new[var] = expr


_LIFTED = {
    "maximum": (topi.maximum, relax.op.maximum),
    "minimum": (topi.minimum, relax.op.minimum),
}


def _lift(mod: IRModule, value: Expr) -> Expr:
    """Replace a call of a tensor program by the operator that it computes. Other values stay as they are.

    TVM imports ONNX's Clip as two tensor programs. A program is replaced only if the operator is lowered to the same
    program.
    """
    if op_name(value) != "relax.call_tir" or not isinstance(value.args[1], relax.Tuple):
        return value
    program = value.args[0]
    operands = list(value.args[1].fields)
    lower, operator = _LIFTED.get(program.name_hint.rstrip("0123456789_"), (None, None))
    if lower is None or float_dtype(value) is None:
        return value
    dtype = str(value.ty.dtype)
    numbers = _bound(mod[program]) if len(operands) == 1 else []
    if len(operands) + len(numbers) != 2:
        return value
    builder = relax.BlockBuilder()
    made = builder.call_te(lower, *operands, *numbers)
    if not tvm_ffi.structural_equal(builder.get()[made.args[0]], mod[program]):
        return value
    return builder.normalize(operator(*operands, *(relax.const(number, dtype) for number in numbers)))


def _bound(program: PrimFunc) -> list[float]:
    """Return the number that a tensor program with one loop nest compares its input with; empty if it does not."""
    node = program.body
    while node is not None and not isinstance(node, tvm.tirx.BufferStore):
        node = getattr(node, "block", None) or getattr(node, "body", None)
    number = getattr(getattr(node, "value", None), "b", None)
    return [float(number.value)] if isinstance(number, tvm.tirx.FloatImm) else []
