"""Softmax and layer normalisation over the last dimension become programs that are scheduled, and need no search."""

from __future__ import annotations

from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.operators.rows import lanes_of, layer_norm, softmax
from autotune.tvm_backend.types import Call, Expr, IRModule, PrimFunc, Var


def replace_row_operators(mod: IRModule) -> IRModule:
    """Rewrite `main` so that softmax and layer normalisation over the last dimension are scheduled programs.

    Layer normalisation is recognised as an operator, and as exporters write it in terms of others.

    Args:
        mod: A module before LegalizeOps, for a CPU.
    """
    return rewrite_and_clean(mod, _Replacer)


def name_layer_norms(mod: IRModule) -> IRModule:
    """Rewrite `main` so that layer normalisation is one operator, also where exporters write it in terms of others.

    Args:
        mod: A module before LegalizeOps, for a CPU.
    """
    return rewrite_and_clean(mod, _Namer)


class _Namer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        normalised = _Written(self.values).match(value)
        if normalised is None or not _is_of_rows(value, normalised):
            return None
        data, scale, offset, epsilon = normalised
        return relax.op.nn.layer_norm(self.leaf(data), scale, offset, axes=[-1], epsilon=epsilon)


class _Replacer(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        return self._softmax(value) if op_name(value) == "relax.nn.softmax" else self._layer_norm(value)

    def _softmax(self, call: Call) -> Expr | None:
        shape = _rows(call)
        if shape is None or int(call.attrs.axis) not in (-1, len(shape) - 1):
            return None
        return self._call(softmax(shape, lanes_of(shape[-1])), "softmax_rows", call, [call.args[0]])

    def _layer_norm(self, value: Expr) -> Expr | None:
        normalised = (
            normalised_rows(value) if op_name(value) == "relax.nn.layer_norm" else _Written(self.values).match(value)
        )
        if normalised is None or not _is_of_rows(value, normalised):
            return None
        data, scale, offset, epsilon = normalised
        shape = static_shape(value)
        program = layer_norm(shape, lanes_of(shape[-1]), epsilon)
        return self._call(program, "layer_norm_rows", value, [data, scale, offset])

    def _call(self, program: PrimFunc, name: str, value: Expr, operands: list[Expr]) -> Expr:
        function = self.builder.add_func(program, name)
        return relax.call_tir(function, [self.leaf(item) for item in operands], out_ty=value.ty)


def _rows(value: Expr) -> tuple[int, ...] | None:
    """The shape of a float32 tensor of rows that are made of whole vectors."""
    shape = static_shape(value)
    return shape if len(shape) > 1 and float_dtype(value) == "float32" and lanes_of(shape[-1]) else None


Norm = tuple[Expr, Expr, Expr, float]  # data, scale, offset and the small number below the root


def _is_of_rows(value: Expr, normalised: Norm) -> bool:
    """Whether a layer normalisation is of rows of whole vectors, with a scale and an offset for each column."""
    data, scale, offset, _ = normalised
    shape = _rows(value)
    return shape is not None and [static_shape(item) for item in (data, scale, offset)] == [shape, *[shape[-1:]] * 2]


def normalised_rows(call: Call) -> Norm | None:
    """Return what a layer normalisation over the last dimension normalises; None for one over others."""
    axes = [int(axis) for axis in call.attrs.axes]
    rank = len(static_shape(call))
    if axes not in ([-1], [rank - 1]) or not (call.attrs.center and call.attrs.scale):
        return None
    return (*call.args, float(call.attrs.epsilon))


class _Written:
    """Recognises (x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon) * scale + offset."""

    def __init__(self, values: dict[Var, Expr]) -> None:
        self._values = values

    def match(self, value: Expr) -> Norm | None:
        """What is normalised, if a value is the last step of such a formula; scale and offset are constants."""
        product, offset = self._with_constant(value, "relax.add")
        normal, scale = self._with_constant(product, "relax.multiply")
        if op_name(normal) != "relax.divide":
            return None
        moved, root = normal.args
        deviation, epsilon = self._with_constant(self._operand(root, "relax.sqrt"), "relax.add")
        square = self._mean(deviation)
        difference: Expr = self._values.get(moved)
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

    def _operand(self, var: Var, name: str) -> Expr:
        """The value of the operand of a unary operator whose result a variable is; else None."""
        value: Expr = self._values.get(var) if isinstance(var, relax.Var) else None
        return self._values.get(value.args[0]) if op_name(value) == name else None

    def _mean(self, value: Expr) -> Expr | None:
        """What a value is the mean of over the last dimension, which it keeps."""
        if op_name(value) != "relax.mean" or not value.attrs.keepdims or value.attrs.axis is None:
            return None
        axes = [int(axis) for axis in value.attrs.axis]
        rank = len(static_shape(value.args[0]))
        return value.args[0] if axes in ([-1], [rank - 1]) else None

    def _squared(self, square: Expr, moved: Expr) -> bool:
        value: Expr = self._values.get(square)
        if op_name(value) == "relax.multiply":
            return bool(value.args[0].same_as(moved) and value.args[1].same_as(moved))
        if op_name(value) != "relax.power" or not value.args[0].same_as(moved):
            return op_name(value) == "relax.square" and bool(value.args[0].same_as(moved))
        exponent = value.args[1]
        return is_tensor_constant(exponent) and bool((exponent.value.numpy() == 2.0).all())
