"""Operators on rows become programs that are scheduled, and need no search.

They are softmax, layer normalisation over the last dimension, and permutations of the rows of attention heads. What
converts their result to bfloat16, or packs it as the weights of a product, is computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from tvm import relax

from autotune.tvm_backend.expressions import (
    float_dtype,
    is_tensor_constant,
    op_name,
    readers,
    static_shape,
    values_of,
    variables,
)
from autotune.tvm_backend.graph.reshape import ELEMENTWISE
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, from_float
from autotune.tvm_backend.operators.bfloat16_images import CONVERT, PAIRS
from autotune.tvm_backend.operators.packed_product import PACKED_PRODUCT
from autotune.tvm_backend.operators.permuted_rows import Heads, pairs_shape, permuted_pairs_program, permuted_program
from autotune.tvm_backend.operators.rows import Convert, column_softmax, lanes_of, layer_norm, softmax
from autotune.tvm_backend.programs import OPAQUE
from autotune.tvm_backend.types import Call, Expr, IRModule, PrimFunc, Var

_FLOAT = "float32"
_PERMUTATION = "relax.permute_dims"
_PRODUCTS = ("relax.matmul", "relax.nn.conv2d")  # TVM fuses them to nothing that they read
_WRITE: Mapping[str, Convert] = {_FLOAT: lambda element: element, DTYPE: from_float}


def replace_row_operators(mod: IRModule) -> IRModule:
    """Rewrite `main` so that operators on rows are scheduled programs.

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


@dataclass(frozen=True)
class _RowKernel:
    """The kernel of an operator on rows."""

    name: str
    operands: tuple[Expr, ...]  # what it reads: the rows, and vectors
    reads: tuple[int, ...]  # in which shape it reads the rows
    writes: tuple[int, ...]  # in which shape it writes its result
    program: Callable[[str], PrimFunc]  # makes its program from the element type of its result


class _Replacer(PlainRewriter):
    """Replaces operators on rows, each with the conversion to bfloat16 that alone reads its result."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._readers = readers(self.function)
        self._outputs = set(variables(self.function.body.body))
        self._var: Var = None

    def visit(self, var: Var, value: Expr) -> None:
        self._var = var
        super().visit(var, value)

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == "relax.call_tir":
            return self._joined(value)
        kernel = self._kernel(value)
        if kernel is None or (op_name(value) == _PERMUTATION and not self._is_worth_a_kernel(value)):
            return None
        return self._call(kernel, kernel.program(_FLOAT), (kernel.writes, _FLOAT), value, self._var)

    def _joined(self, call: Call) -> Expr | None:
        """What converts rows, or packs them as weights, together with the operator that makes the rows."""
        name = str(call.args[0].name_hint).rstrip("0123456789")
        if name not in (CONVERT, PAIRS) or call.ty.dtype != DTYPE:
            return None
        made_by = self._made_by(call.args[1].fields[0])
        kernel = None if made_by is None else self._kernel(self.values[made_by])
        if made_by is None or kernel is None:
            return None
        if name == CONVERT:
            return self._call(kernel, kernel.program(DTYPE), (kernel.writes, DTYPE), call, made_by)
        heads = _heads(self.values[made_by])
        batch, *matrix = static_shape(call.args[1].fields[0])
        if heads is None or (batch, *matrix) != (heads.images * heads.heads, *heads.result[2:]):
            return None
        return self._call(kernel, permuted_pairs_program(heads), (pairs_shape(heads), DTYPE), call, made_by)

    def _made_by(self, operand: Expr) -> Var | None:
        """The variable before all reshapes of an operand; None if something else reads it, too."""
        while isinstance(operand, relax.Var) and operand in self.values:
            if len(self._readers[operand]) > 1 or operand in self._outputs:
                return None
            if op_name(self.values[operand]) != "relax.reshape":
                return operand
            operand = self.values[operand].args[0]
        return None

    def _kernel(self, value: Expr) -> _RowKernel | None:
        make = {"relax.nn.softmax": self._softmax, _PERMUTATION: self._permutation}
        return make.get(op_name(value), self._layer_norm)(value)

    def _softmax(self, call: Call) -> _RowKernel | None:
        shape = static_shape(call)
        axis = int(call.attrs.axis) % max(len(shape), 1)
        columns = prod(shape[axis + 1 :])
        if _rows(call) and axis == len(shape) - 1:
            return _RowKernel("softmax_rows", (call.args[0],), shape, shape, partial(_softmax_program, shape))
        if not shape or float_dtype(call) != _FLOAT or not lanes_of(columns):
            return None
        matrices = (prod(shape[:axis]), shape[axis], columns)
        program = partial(_column_softmax_program, matrices)
        return _RowKernel("softmax_columns", (call.args[0],), matrices, matrices, program)

    def _layer_norm(self, value: Expr) -> _RowKernel | None:
        normalised = (
            normalised_rows(value) if op_name(value) == "relax.nn.layer_norm" else _Written(self.values).match(value)
        )
        if normalised is None or not _is_of_rows(value, normalised):
            return None
        *operands, epsilon = normalised
        shape = static_shape(value)
        program = partial(_layer_norm_program, shape, epsilon)
        return _RowKernel("layer_norm_rows", tuple(operands), shape, shape, program)

    def _permutation(self, call: Call) -> _RowKernel | None:
        heads = _heads(call)
        if heads is None:
            return None
        return _RowKernel("permuted_rows", (call.args[0],), heads.shape, heads.result, partial(permuted_program, heads))

    def _is_worth_a_kernel(self, call: Call) -> bool:
        """Whether a permutation that nothing is joined to exchanges rows and elements, and would be fused with nothing.

        A kernel of TVM's moves vectors that stay whole as fast.
        """
        heads = _heads(call)
        alone = self._follows_product(call.args[0]) and self._is_for_products(self._var)
        return heads is not None and heads.exchanged and alone

    def _follows_product(self, operand: Expr) -> bool:
        """Whether an operand is made by a product and what is fused to it, or by a kernel that is fused to nothing."""
        value: Expr = self.values.get(operand) if isinstance(operand, relax.Var) else None
        if op_name(value) not in (*ELEMENTWISE, "relax.reshape"):
            return value is not None and self._is_unfused(value)
        return any(self._follows_product(item) for item in value.args)

    def _is_for_products(self, var: Var) -> bool:
        """Whether TVM fuses nothing that reads a variable to it."""
        return all(
            self._is_for_products(reader) if op_name(value) == "relax.reshape" else self._is_unfused(value)
            for reader, value in self._readers.get(var, [])
        )

    def _is_unfused(self, value: Expr) -> bool:
        if op_name(value) != "relax.call_tir":
            return op_name(value) in _PRODUCTS
        program = value.args[0]
        is_product = str(program.name_hint).startswith(PACKED_PRODUCT)
        return is_product or int((self.mod[program].attrs or {}).get("op_pattern", 0)) == OPAQUE

    def _call(
        self, kernel: _RowKernel, program: PrimFunc, result: tuple[tuple[int, ...], str], value: Expr, name: Var
    ) -> Expr:
        """Call a kernel in place of a value.

        Args:
            result: The shape and the element type of what it writes.
            value: What it stands for, whose elements are those in another shape.
            name: A variable that has the name of the operator.
        """
        function = self.builder.add_func(program, kernel.name)
        rows, *vectors = (self.leaf(item) for item in kernel.operands)
        if static_shape(kernel.operands[0]) != kernel.reads:
            rows = self.builder.emit(relax.op.reshape(rows, kernel.reads))
        call = relax.call_tir(function, [rows, *vectors], out_ty=relax.TensorType(*result))
        shape = static_shape(value)
        return call if result[0] == shape else relax.op.reshape(self.builder.emit(call, name.name), shape)


def _softmax_program(shape: tuple[int, ...], dtype: str) -> PrimFunc:
    return softmax(shape, lanes_of(shape[-1]), write=_WRITE[dtype])


def _column_softmax_program(shape: tuple[int, int, int], dtype: str) -> PrimFunc:
    return column_softmax(shape, lanes_of(shape[-1]), write=_WRITE[dtype])


def _layer_norm_program(shape: tuple[int, ...], epsilon: float, dtype: str) -> PrimFunc:
    return layer_norm(shape, lanes_of(shape[-1]), epsilon, write=_WRITE[dtype])


def _heads(value: Expr) -> Heads | None:
    """What a permutation of float32 is; None for any other value."""
    if op_name(value) != _PERMUTATION or float_dtype(value) != _FLOAT or value.attrs.axes is None:
        return None
    shape = static_shape(value.args[0])
    return Heads.of(shape, [int(axis) % len(shape) for axis in value.attrs.axes]) if shape else None


def _rows(value: Expr) -> tuple[int, ...] | None:
    """The shape of a float32 tensor of rows that are made of whole vectors."""
    shape = static_shape(value)
    return shape if len(shape) > 1 and float_dtype(value) == _FLOAT and lanes_of(shape[-1]) else None


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
        if averaged is None or not averaged.same_as(data) or values_of(epsilon).size != 1:
            return None
        return data, scale, offset, float(values_of(epsilon).item())

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
        return is_tensor_constant(exponent) and bool((values_of(exponent) == 2.0).all())
