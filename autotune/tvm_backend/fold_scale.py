"""Fold per-channel scales into the weights of the convolution before them: batch normalisation costs one add.

`Rewriter`, the walk over a function's bindings, is shared with `layout`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax, topi

Expr = Any  # a Relax expression; TVM has no types
Array = npt.NDArray[np.float64]

_FLOATS = ("float16", "float32", "float64")


def fold_scales(mod: Any) -> Any:
    """Merge each run of additions and multiplications by per-channel constants in `main`.

    A run after a convolution with constant weights becomes scaled weights and one addition; elsewhere it
    becomes one multiplication and one addition. A run ends where a value has several uses.

    Args:
        mod: a module whose batch normalisations are decomposed and whose constants are folded.
    """
    return rewrite(mod, _Folder)


def rewrite(mod: Any, make: Callable[[Any], Rewriter]) -> Any:
    """`mod` with `main` rebuilt by the rewriter, or `mod` itself where `main` is missing or branches."""
    names = {item.name_hint for item in mod.get_global_vars()}
    if "main" not in names or not isinstance(mod["main"], relax.Function) or _branches(mod["main"]):
        return mod
    return make(mod).run()


def static_shape(expr: Expr) -> tuple[int, ...]:
    """The shape of a tensor expression; () too where it is no tensor or has a symbolic dimension."""
    shape = getattr(expr.ty, "shape", None)
    values = shape.values if isinstance(shape, relax.ShapeExpr) else ()
    if not all(isinstance(item, tvm.tirx.IntImm) for item in values):
        return ()
    return tuple(int(item) for item in values)


def float_dtype(expr: Expr) -> str | None:
    """The element type of a tensor expression when it is a floating-point one."""
    dtype = str(getattr(expr.ty, "dtype", ""))
    return dtype if dtype in _FLOATS else None


def is_tensor_constant(expr: Expr) -> bool:
    """Whether an expression is a constant tensor, and not an immediate number or a string."""
    return isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType)


def op_name(expr: Expr) -> str:
    """The operator's name where an expression is a call to one, else an empty string."""
    if not isinstance(expr, relax.Call):
        return ""
    return str(expr.op.name) if isinstance(expr.op, tvm.ir.Op) else ""


def plain_convolution(value: Expr) -> bool:
    """Whether a value is a floating-point NCHW convolution with constant OIHW weights and static shapes."""
    if op_name(value) != "relax.nn.conv2d" or not is_tensor_constant(value.args[1]):
        return False
    attrs = value.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    dtypes = {float_dtype(item) for item in (*value.args, value)}
    known = len(dtypes) == 1 and None not in dtypes and all(map(static_shape, (*value.args, value)))
    return known and layouts == ("NCHW", "OIHW", "NCHW")


class Rewriter:
    """Rebuilds `main` binding by binding; a subclass says what each binding becomes.

    Parameters, attributes and the structure of the result stay as they are.
    """

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        self.function = mod["main"]
        others = {key: item for key, item in mod.functions.items() if key.name_hint != "main"}
        rest = tvm.IRModule(others, attrs=mod.attrs, global_infos=mod.global_infos)
        self.builder = relax.BlockBuilder(rest)

    def visit(self, var: Expr, value: Expr) -> None:
        """Take one binding of the old function."""
        raise NotImplementedError

    def plain(self, var: Expr) -> Expr:
        """The new expression for an old variable, of the same shape and layout."""
        raise NotImplementedError

    def bind(self, var: Expr, expr: Expr) -> None:
        """Make a new expression the only one for an old variable."""
        raise NotImplementedError

    def leave_block(self, before: Any) -> None:
        """Forget what a dataflow block made for itself; `before` is what `enter_block` returned."""

    def enter_block(self) -> Any:
        """What to go back to at the end of a dataflow block."""

    def run(self) -> Any:
        """The module with `main` rebuilt."""
        function, attrs = self.function, dict(self.function.attrs or {})
        with self.builder.function("main", list(function.params), attrs, pure=bool(function.is_pure)):
            for block in function.body.blocks:
                self._block(block)
            self.builder.emit_func_output(self.leaf(function.body.body))
        return self.builder.finalize()

    def rebuild(self, value: Expr) -> Expr:
        """A bound value with its variables replaced by their new plain expressions."""
        if isinstance(value, relax.Call):
            return relax.Call(value.op, [self.leaf(item) for item in value.args], value.attrs, value.ty_args)
        return self.leaf(value)

    def leaf(self, expr: Expr) -> Expr:
        """An argument with its variables replaced by their new plain expressions."""
        if isinstance(expr, relax.Var):
            return self.plain(expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.leaf(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.leaf(expr.tuple_value), expr.index)
        return expr

    def _block(self, block: Any) -> None:
        if not isinstance(block, relax.DataflowBlock):
            self._bindings(block)
            for binding in block.bindings:
                self.bind(binding.var, self.plain(binding.var))
            return
        before = self.enter_block()
        with self.builder.dataflow():
            self._bindings(block)
            visible = [item.var for item in block.bindings if not isinstance(item.var, relax.DataflowVar)]
            made = [self.builder.emit_output(self.plain(var), var.name) for var in visible]
        self.leave_block(before)
        for var, output in zip(visible, made, strict=True):
            self.bind(var, output)

    def _bindings(self, block: Any) -> None:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                value = self.leaf(binding.value)
                self.bind(binding.var, self.builder.match_cast(value, binding.ty, binding.var.name))
            else:
                self.visit(binding.var, _lift(self.mod, binding.value))


_LIFTED = {
    "maximum": (topi.maximum, relax.op.maximum),
    "minimum": (topi.minimum, relax.op.minimum),
}


def _lift(mod: Any, value: Expr) -> Expr:
    """The operator that a tensor program stands for: TVM imports ONNX's Clip as two tensor programs.

    A program counts as the operator only if lowering the operator gives the same program.
    """
    if op_name(value) != "relax.call_tir" or not isinstance(value.args[1], relax.Tuple):
        return value
    program, operands = value.args[0], list(value.args[1].fields)
    lower, operator = _LIFTED.get(program.name_hint.rstrip("0123456789_"), (None, None))
    if lower is None or float_dtype(value) is None:
        return value
    dtype, numbers = str(value.ty.dtype), _bound(mod[program]) if len(operands) == 1 else []
    if len(operands) + len(numbers) != 2:
        return value
    builder = relax.BlockBuilder()
    made = builder.call_te(lower, *operands, *numbers)
    if not tvm_ffi.structural_equal(builder.get()[made.args[0]], mod[program]):
        return value
    return builder.normalize(operator(*operands, *(relax.const(number, dtype) for number in numbers)))


def _bound(program: Any) -> list[float]:
    """The number that a tensor program with one loop nest compares its input with, if it does just that."""
    node = program.body
    while node is not None and not isinstance(node, tvm.tirx.BufferStore):
        node = getattr(node, "block", None) or getattr(node, "body", None)
    number = getattr(getattr(node, "value", None), "b", None)
    return [float(number.value)] if isinstance(number, tvm.tirx.FloatImm) else []


@dataclass(frozen=True)
class _Affine:
    """`base * scale + shift`, not emitted yet.

    base is a new variable or a call of a convolution (N, C, H, W); scale and shift are () or (C, 1, 1).
    """

    base: Expr
    scale: Array
    shift: Array


_ONE, _ZERO = np.ones(()), np.zeros(())

# What `value op constant`, and for some operators `constant op value`, makes of (scale, shift).
_Step = Callable[[Array, Array, Array], tuple[Array, Array]]
_AFTER: dict[str, _Step] = {
    "relax.add": lambda scale, shift, const: (scale, shift + const),
    "relax.subtract": lambda scale, shift, const: (scale, shift - const),
    "relax.multiply": lambda scale, shift, const: (scale * const, shift * const),
    "relax.divide": lambda scale, shift, const: (scale / const, shift / const),
}
_BEFORE: dict[str, _Step] = {
    "relax.add": _AFTER["relax.add"],
    "relax.multiply": _AFTER["relax.multiply"],
    "relax.subtract": lambda scale, shift, const: (-scale, const - shift),
}


class _Folder(Rewriter):
    """Holds convolutions and runs of affine steps back until something else needs their value."""

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._uses = _count_uses(self.function)
        self._made: dict[Any, Expr] = {}
        self._pending: dict[Any, _Affine] = {}

    def visit(self, var: Expr, value: Expr) -> None:
        pending = _Affine(self.rebuild(value), _ONE, _ZERO) if plain_convolution(value) else self._step(value)
        if pending is None:
            self._made[var] = self.builder.emit(self.rebuild(value), var.name)
        else:
            self._pending[var] = pending

    def plain(self, var: Expr) -> Expr:
        if var in self._pending:
            self._made[var] = self._emit(self._pending.pop(var), var.name)
        return self._made.get(var, var)

    def bind(self, var: Expr, expr: Expr) -> None:
        self._made[var] = expr

    def _step(self, value: Expr) -> _Affine | None:
        """The value as an affine function, joined to a run of such that ends in its operand."""
        found = _affine_operands(value)
        if found is None:
            return None
        step, operand, const = found
        inner = isinstance(operand, relax.DataflowVar) and self._uses[operand] == 1
        joined = inner and operand in self._pending
        run = self._pending[operand] if joined else _Affine(operand, _ONE, _ZERO)
        with np.errstate(all="ignore"):
            scale, shift = step(run.scale, run.shift, const)
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            return None
        if joined:
            del self._pending[operand]
        return _Affine(run.base if joined else self.plain(operand), scale, shift)

    def _emit(self, run: _Affine, name: str) -> Expr:
        expr, scale = run.base, run.scale
        if isinstance(expr, relax.Call):
            expr, scale = self.builder.emit(_scale_weights(expr, scale), name), _ONE
        if (scale != 1).any():
            expr = self.builder.emit(relax.op.multiply(expr, _constant(scale, expr)), name)
        if (run.shift != 0).any():
            expr = self.builder.emit(relax.op.add(expr, _constant(run.shift, expr)), name)
        return expr


def _affine_operands(value: Expr) -> tuple[_Step, Expr, Array] | None:
    """The step, the variable (N, C, H, W) and the constant (C, 1, 1) or () of an arithmetic call."""
    name = op_name(value)
    if name not in _AFTER:
        return None
    left, right = value.args
    table, operand, other = (_AFTER, left, right) if is_tensor_constant(right) else (_BEFORE, right, left)
    if name not in table or not isinstance(operand, relax.Var) or not is_tensor_constant(other):
        return None
    shape = static_shape(operand)
    if len(shape) != 4 or shape != static_shape(value) or float_dtype(operand) is None:
        return None
    const = _per_channel(other.value.numpy(), shape[1])
    return None if const is None else (table[name], operand, const)


def _per_channel(value: npt.NDArray[Any], channels: int) -> Array | None:
    """A constant for each channel of (N, C, H, W), as float64 () or (C, 1, 1); None for any other."""
    if value.size == 1:
        return value.astype(np.float64).reshape(())
    if value.shape[-3:] != (channels, 1, 1) or value.size != channels:
        return None
    return value.astype(np.float64).reshape(channels, 1, 1)


def _scale_weights(call: Expr, scale: Array) -> Expr:
    """The convolution with its weights (O, I, KH, KW) multiplied by scale () or (O, 1, 1)."""
    if (scale == 1).all():
        return call
    data, weight = call.args
    scaled = weight.value.numpy().astype(np.float64) * scale.reshape(-1, 1, 1, 1)
    return relax.Call(call.op, [data, _as_constant(scaled, weight)], call.attrs, call.ty_args)


def _constant(value: Array, like: Expr) -> Expr:
    """() as it is, (C, 1, 1) as (1, C, 1, 1), of the element type of `like`."""
    return _as_constant(value if value.ndim == 0 else value[None], like)


def _as_constant(value: Array, like: Expr) -> Expr:
    dtype = str(like.ty.dtype)
    return relax.const(value.astype(dtype), dtype)


def _count_uses(function: Any) -> Counter[Any]:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    expressions = [*(binding.value for binding in bindings), function.body.body]
    return Counter(var for expr in expressions for var in _variables(expr))


def _variables(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.TupleGetItem):
        yield from _variables(expr.tuple_value)
    elif isinstance(expr, relax.Call | relax.Tuple):
        for item in expr.args if isinstance(expr, relax.Call) else expr.fields:
            yield from _variables(item)


def _branches(function: Any) -> bool:
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return any(isinstance(value, relax.If | relax.Function | relax.SeqExpr) for value in values)
