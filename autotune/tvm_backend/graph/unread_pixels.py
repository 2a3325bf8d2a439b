"""Compute no pixels that nothing reads.

A 1x1 convolution with stride 2 reads a quarter of the pixels of its input. If nothing reads the others, the operators
before it need not compute them: a convolution takes a larger stride, and an elementwise operator works on a smaller
image. ResNets as they were first published begin each stage with two such convolutions. So the last block of the stage
before has a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tvm import relax

from autotune.tvm_backend.expressions import (
    bindings_of,
    is_tensor_constant,
    op_name,
    plain_convolution,
    static_shape,
    variables,
)
from autotune.tvm_backend.graph.reshape import ELEMENTWISE
from autotune.tvm_backend.graph.rewrite import PlainRewriter, is_rewritable, rewrite_and_clean
from autotune.tvm_backend.types import Expr, Function, IRModule, Var

Steps = tuple[int, int]  # every how many pixels one is read, in height and in width

_ALL: Steps = (1, 1)


def drop_unread_pixels(mod: IRModule) -> IRModule:
    """Rewrite `main` so that convolutions and elementwise operators compute only the pixels that something reads.

    Args:
        mod: A module before LegalizeOps. The weights of convolutions are Relax constants.

    Returns:
        The rewritten module, or `mod` if all pixels are read or `main` cannot be rewritten.
    """
    if not is_rewritable(mod):
        return mod
    steps = _steps_of(mod["main"])
    return rewrite_and_clean(mod, lambda module: _Thinner(module, steps)) if steps else mod


def _steps_of(function: Function) -> dict[Var, Steps]:
    """Return the steps of those variables of which some pixels are not read and need not be computed."""
    read: dict[Var, Steps] = dict.fromkeys(variables(function.body.body), _ALL)
    by_var: dict[Var, Steps] = {}
    for binding in bindings_of(function)[::-1]:
        var = binding.var
        value = binding.value
        steps = read.get(var, _ALL) if isinstance(var, relax.DataflowVar) and _can_skip(value) else _ALL
        if steps != _ALL:
            by_var[var] = steps
        for operand, wanted in _reads(value, steps):
            before = read.get(operand, wanted)
            read[operand] = (gcd(before[0], wanted[0]), gcd(before[1], wanted[1]))
    return by_var


def _can_skip(value: Expr) -> bool:
    """Return whether the value can be computed at some pixels only."""
    if plain_convolution(value):
        return True
    shape = static_shape(value)
    if op_name(value) not in ELEMENTWISE or len(shape) != 4 or 1 in shape[2:]:
        return False
    tensors = [item for item in value.args if isinstance(item.ty, relax.TensorType)]
    return all(_is_image(item, shape) or _is_constant(item) for item in tensors)


def _is_image(operand: Expr, shape: tuple[int, ...]) -> bool:
    """Return whether an operand of an elementwise operator has a pixel for each pixel of the result."""
    return isinstance(operand, relax.Var) and static_shape(operand)[2:] == shape[2:]


def _is_constant(operand: Expr) -> bool:
    """Return whether an operand of an elementwise operator is the same at all pixels."""
    shape = static_shape(operand)
    return set(shape[-2:]) <= {1} and (len(shape) == 4 or is_tensor_constant(operand))


def _reads(value: Expr, steps: Steps) -> Iterator[tuple[Var, Steps]]:
    """Yield the variables that a value is computed from, each with the steps at which it is read.

    Args:
        steps: Those of the value itself.
    """
    if plain_convolution(value) and isinstance(value.args[0], relax.Var):
        yield value.args[0], _times(_strides(value), steps) if _is_pointwise(value) else _ALL
    elif steps != _ALL:
        yield from ((item, steps if _is_image(item, static_shape(value)) else _ALL) for item in variables(value))
    else:
        yield from ((item, _ALL) for item in variables(value))


def _is_pointwise(convolution: Expr) -> bool:
    padding = [int(item) for item in convolution.attrs.padding]
    return static_shape(convolution.args[1])[2:] == (1, 1) and not any(padding)


def _strides(convolution: Expr) -> Steps:
    down, across = (int(item) for item in convolution.attrs.strides)
    return down, across


def _times(one: Steps, other: Steps) -> Steps:
    return one[0] * other[0], one[1] * other[1]


class _Thinner(PlainRewriter):
    """Keeps for each old variable a new one with the pixels that are read, and slices of it."""

    local = ("_sliced",)

    def __init__(self, mod: IRModule, steps: dict[Var, Steps]) -> None:
        super().__init__(mod)
        self._steps = steps
        self._sliced: dict[tuple[Var, Steps], Expr] = {}

    def visit(self, var: Var, value: Expr) -> None:
        self._wanted = self._steps.get(var, _ALL)
        super().visit(var, value)

    def replace(self, value: Expr) -> Expr | None:
        if plain_convolution(value):
            return self._convolution(value)
        if self._wanted == _ALL:
            return None
        args = [self._at(item) if _is_image(item, static_shape(value)) else self.leaf(item) for item in value.args]
        return relax.Call(value.op, args, value.attrs, value.ty_args)

    def _convolution(self, value: Expr) -> Expr | None:
        """Return the convolution with the strides that remain: its input may have taken some steps already."""
        data = value.args[0]
        attrs = value.attrs
        total = _times(_strides(value), self._wanted)
        taken = self._steps.get(data, _ALL)
        strides = total[0] // taken[0], total[1] // taken[1]
        if strides == _strides(value):
            return None
        return relax.op.nn.conv2d(
            self.leaf(data),
            value.args[1],
            strides=strides,
            padding=[int(item) for item in attrs.padding],
            dilation=[int(item) for item in attrs.dilation],
            groups=int(attrs.groups),
            out_dtype=attrs.out_dtype,
        )

    def _at(self, var: Var) -> Expr:
        """Return a variable at the steps that the current value is wanted at."""
        has = self._steps.get(var, _ALL)
        wanted = self._wanted
        if has == wanted:
            return self.plain(var)
        if (var, wanted) not in self._sliced:
            data = self.plain(var)
            strides = [wanted[0] // has[0], wanted[1] // has[1]]
            cut = relax.op.strided_slice(data, [2, 3], [0, 0], list(static_shape(data)[2:]), strides)
            self._sliced[var, wanted] = self.builder.emit(cut)
        return self._sliced[var, wanted]
