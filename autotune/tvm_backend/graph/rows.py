"""Replace softmax and layer normalisation by kernels of our own that go over the rows."""

from __future__ import annotations

from typing import Any

from tvm import relax

from autotune.tvm_backend.graph.rewrite import (
    Expr,
    PlainRewriter,
    float_dtype,
    is_tensor_constant,
    op_name,
    rewrite_and_clean,
    static_shape,
)
from autotune.tvm_backend.graph.row_kernels import lanes_of, layer_norm, softmax


def replace_row_operators(mod: Any) -> Any:
    """Rewrite `main` so that softmax and layer normalisation over the last dimension are scheduled programs.

    Layer normalisation is recognised as an operator, and as exporters write it in terms of others.

    Args:
        mod: A module before LegalizeOps, for a CPU.
    """
    return rewrite_and_clean(mod, _Replacer)


class _Replacer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        return self._softmax(value) if op_name(value) == "relax.nn.softmax" else self._layer_norm(value)

    def _softmax(self, call: Any) -> Expr | None:
        shape = _rows(call)
        if shape is None or int(call.attrs.axis) not in (-1, len(shape) - 1):
            return None
        return self._call(softmax(shape, lanes_of(shape[-1])), "softmax_rows", call, [call.args[0]])

    def _layer_norm(self, value: Expr) -> Expr | None:
        found = _operator(value) if op_name(value) == "relax.nn.layer_norm" else _Written(self.values).match(value)
        shape = _rows(value)
        if found is None or shape is None:
            return None
        data, scale, offset, epsilon = found
        if static_shape(data) != shape or any(static_shape(item) != shape[-1:] for item in (scale, offset)):
            return None
        program = layer_norm(shape, lanes_of(shape[-1]), epsilon)
        return self._call(program, "layer_norm_rows", value, [data, scale, offset])

    def _call(self, program: Any, name: str, value: Expr, operands: list[Expr]) -> Expr:
        function = self.builder.add_func(program, name)
        return relax.call_tir(function, [self.leaf(item) for item in operands], out_ty=value.ty)


def _rows(value: Expr) -> tuple[int, ...] | None:
    """The shape of a float32 tensor of rows that are made of whole vectors."""
    shape = static_shape(value)
    return shape if len(shape) > 1 and float_dtype(value) == "float32" and lanes_of(shape[-1]) else None


_Norm = tuple[Expr, Expr, Expr, float]  # data, scale, offset and the small number below the root


def _operator(call: Any) -> _Norm | None:
    axes, rank = [int(axis) for axis in call.attrs.axes], len(static_shape(call))
    if axes not in ([-1], [rank - 1]) or not (call.attrs.center and call.attrs.scale):
        return None
    return (*call.args, float(call.attrs.epsilon))


class _Written:
    """Recognises (x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon) * scale + offset."""

    def __init__(self, values: dict[Any, Expr]) -> None:
        self._values = values

    def match(self, value: Expr) -> _Norm | None:
        """What is normalised, if a value is the last step of such a formula; scale and offset are constants."""
        product, offset = self._with_constant(value, "relax.add")
        normal, scale = self._with_constant(product, "relax.multiply")
        if op_name(normal) != "relax.divide":
            return None
        moved, root = normal.args
        deviation, epsilon = self._with_constant(self._operand(root, "relax.sqrt"), "relax.add")
        square = self._mean(deviation)
        difference: Any = self._values.get(moved)
        if epsilon is None or square is None or not self._squared(square, moved):
            return None
        if op_name(difference) != "relax.subtract":
            return None
        data, mean = difference.args
        averaged = self._mean(self._values.get(mean))
        if averaged is None or not averaged.same_as(data) or epsilon.value.numpy().size != 1:
            return None
        return data, scale, offset, float(epsilon.value.numpy().item())

    def _with_constant(self, value: Expr, name: str) -> tuple[Expr, Expr]:
        """The value of the one operand of a binary operator and the constant that is the other; else None twice."""
        if op_name(value) == name:
            for operand, constant in (value.args, reversed(value.args)):
                if is_tensor_constant(constant) and isinstance(operand, relax.Var):
                    return self._values.get(operand), constant
        return None, None

    def _operand(self, var: Expr, name: str) -> Expr:
        """The value of the operand of a unary operator whose result a variable is; else None."""
        value: Any = self._values.get(var) if isinstance(var, relax.Var) else None
        return self._values.get(value.args[0]) if op_name(value) == name else None

    def _mean(self, value: Expr) -> Expr | None:
        """What a value is the mean of over the last dimension, which it keeps."""
        if op_name(value) != "relax.mean" or not value.attrs.keepdims or value.attrs.axis is None:
            return None
        axes, rank = [int(axis) for axis in value.attrs.axis], len(static_shape(value.args[0]))
        return value.args[0] if axes in ([-1], [rank - 1]) else None

    def _squared(self, square: Expr, moved: Expr) -> bool:
        value: Any = self._values.get(square)
        if op_name(value) == "relax.multiply":
            return bool(value.args[0].same_as(moved) and value.args[1].same_as(moved))
        if op_name(value) != "relax.power" or not value.args[0].same_as(moved):
            return op_name(value) == "relax.square" and bool(value.args[0].same_as(moved))
        exponent = value.args[1]
        return is_tensor_constant(exponent) and bool((exponent.value.numpy() == 2.0).all())
