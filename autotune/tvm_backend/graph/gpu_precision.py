"""Compute convolutions and products on tensor cores: in fp16 or bf16 with sums in fp32, the channels innermost."""

from __future__ import annotations

import tvm
from tvm import relax, te

from autotune.errors import BadInput
from autotune.tvm_backend.expressions import (
    bindings_of,
    constant_of,
    float_dtype,
    is_tensor_constant,
    op_name,
    readers,
    results_of,
    static_shape,
    values_of,
)
from autotune.tvm_backend.graph.constants import fold_constants
from autotune.tvm_backend.graph.permutations import keeps_order
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule, TensorExpr, Var

# MetaSchedule recognises a convolution as a product of matrices, which tensor cores compute, in this layout.
_LAYOUTS = {"relax.nn.conv2d": ["NHWC", "OHWI"]}
_NORM = "relax.nn.layer_norm"
_RESHAPE = "relax.reshape"
_FP16 = "float16"
_BF16 = "bfloat16"


def channels_last(mod: IRModule) -> IRModule:
    """Lay images out with their channels innermost.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
    """
    return fold_constants(rewrite_and_clean(relax.transform.ConvertLayout(_LAYOUTS)(mod), _Reshapes))


def weights_by_terms(mod: IRModule) -> IRModule:
    """Transpose the constant matrices that products multiply by from the right, so that terms lie together.

    Only so `ldmatrix` loads operands of 32 bits. Those of 16 bits it transposes itself.

    Args:
        mod: A module before LegalizeOps, in float32.
    """
    return rewrite_and_clean(mod, _ByTerms)


class _ByTerms(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.matmul" or float_dtype(value) != "float32":
            return None
        left, right = value.args
        shape = static_shape(right)
        if not is_tensor_constant(right) or len(shape) != 2 or not static_shape(left):
            return None
        turned = constant_of(values_of(right).T, "float32")
        return self.builder.call_te(_product_by_terms, self.leaf(left), turned, primfunc_name_hint="matmul")


def _product_by_terms(left: TensorExpr, right: TensorExpr) -> TensorExpr:
    term = te.reduce_axis((0, right.shape[1]), "k")
    shape = (*left.shape[:-1], right.shape[0])
    element = lambda *place: te.sum(left[(*place[:-1], term)] * right[place[-1], term], term)  # noqa: E731
    return te.compute(shape, element, "matmul")


def half_precision(mod: IRModule) -> IRModule:
    """Rewrite a module so that convolutions and products take fp16 and sum in fp32.

    What lies between them is computed in fp16 where TVM holds that for safe. Inputs and outputs keep their types.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
    """
    return fold_constants(_mixed(mod))


def bfloat16(mod: IRModule) -> IRModule:
    """Do the same with bf16 in place of fp16.

    TVM's pass knows fp16 only, so its conversions to fp16 become such to bf16.

    Args:
        mod: As for `half_precision`, with no tensors of fp16.

    Raises:
        BadInput: There are tensors of fp16.
    """
    if any(map(_is_half, [*mod["main"].params, *(item.var for item in bindings_of(mod["main"]))])):
        raise BadInput("the model has tensors of float16; submit it with --precision fp16, or as a model of float32")
    return fold_constants(rewrite_and_clean(_mixed(mod), _ToBfloat16))


def _is_half(expr: Expr) -> bool:
    return float_dtype(expr) == _FP16


def _mixed(mod: IRModule) -> IRModule:
    lower = [relax.transform.ConvertLayout(_LAYOUTS), relax.transform.ToMixedPrecision(out_dtype="float32")]
    lowered = rewrite_and_clean(tvm.transform.Sequential(lower)(mod), _Reshapes)
    rounded = rewrite_and_clean(lowered, _WithoutRoundTrips)
    return relax.transform.EliminateCommonSubexpr()(rounded)  # each product has a conversion of its own


class _Reshapes(PlainRewriter):
    """Makes permutations that leave the order of elements as it is reshapes, which cost nothing; of several, one."""

    local = ("values",)

    def replace(self, value: Expr) -> Expr | None:
        base = self._base(value)
        is_reshape = op_name(value) == _RESHAPE and base.same_as(value.args[0])
        return None if base.same_as(value) or is_reshape else relax.op.reshape(self.leaf(base), static_shape(value))

    def _base(self, expr: Expr) -> Expr:
        """What an expression has the elements of, in the same order."""
        value: Expr = self.values.get(expr) if isinstance(expr, relax.Var) else expr
        return self._base(value.args[0]) if self._keeps_order(value) else expr

    def _keeps_order(self, value: Expr) -> bool:
        if op_name(value) not in (_RESHAPE, "relax.permute_dims") or not static_shape(value):
            return False
        shape = static_shape(value.args[0])
        if op_name(value) == _RESHAPE or not shape or value.attrs.axes is None:
            return op_name(value) == _RESHAPE
        return keeps_order(shape, [int(axis) % len(shape) for axis in value.attrs.axes])


class _WithoutRoundTrips(PlainRewriter):
    """Drops conversions to fp16 and straight back, which lose digits for nothing."""

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.astype":
            return None
        inner: Expr = self.values.get(value.args[0])
        if not _is_rounding(inner) or str(inner.args[0].ty.dtype) != str(value.ty.dtype):
            return None
        return self.leaf(inner.args[0])


def round_norms(mod: IRModule) -> IRModule:
    """Have all that reads a layer normalisation read it in 16 bits, if a product does.

    It is fused to its conversion then. A residual sum would keep it from that, which reads it in fp32, and so would a
    reshape between them. What is in bf16 is normalised in fp32.

    Args:
        mod: A module before LegalizeOps, with products in fp16 or bf16.
    """
    for rewriter in (_Reshapes, _ConvertsFirst, _RoundsNorms):
        mod = rewrite_and_clean(mod, rewriter)
    return mod


class _ConvertsFirst(PlainRewriter):
    """Rounds what was reshaped before it is reshaped, where that is fused to what computes it."""

    local = ("values",)

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == _NORM and float_dtype(value) != "float32":
            return self._in_float32(value)
        reshaped: Expr = self.bound(value.args[0]) if _is_rounding(value) else None
        if op_name(reshaped) != _RESHAPE or not static_shape(value):
            return None
        inner = self.leaf(reshaped.args[0])
        return relax.op.reshape(self.emit(relax.op.astype(inner, value.attrs.dtype)), static_shape(value))

    def _in_float32(self, norm: Expr) -> Expr | None:
        """A normalisation of bf16, which TVM cannot lower."""
        if str(norm.ty.dtype) != _BF16:
            return None
        data, *vectors = (self.emit(relax.op.astype(self.leaf(item), "float32")) for item in norm.args)
        exact = relax.Call(norm.op, [data, *vectors], norm.attrs)
        return relax.op.astype(self.emit(exact), _BF16)


class _RoundsNorms(PlainRewriter):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._readers = readers(self.function)
        self._outputs = results_of(self.function)
        self._rounded: dict[Expr, Expr] = {}

    def visit(self, var: Var, value: Expr) -> None:
        rounded = self._rounded.get(value.args[0]) if isinstance(value, relax.Call) and value.args else None
        if rounded is not None and _is_rounding(value):
            self.bind(var, rounded)
        elif rounded is not None and op_name(value) == _RESHAPE:  # the conversion is fused to what reads it
            reshaped = self.emit(relax.op.reshape(rounded, static_shape(value)))
            self.bind(var, self.emit(relax.op.astype(reshaped, "float32")))
        elif op_name(value) == _NORM and (dtype := self._rounded_to(var)):
            exact = self.builder.emit(self.rebuild(value), var.name)
            self._rounded[var] = self.emit(relax.op.astype(exact, dtype))
            self.bind(var, self.emit(relax.op.astype(self._rounded[var], "float32")))
        else:
            super().visit(var, value)

    def replace(self, value: Expr) -> None:
        """Leave what is no normalisation as it is."""

    def _rounded_to(self, var: Var) -> str:
        """The type of 16 bits in which some read a variable and others do not; empty if there is none."""
        values = [value for _, value in self._readers.get(var, [])]
        dtypes = [str(value.attrs.dtype) for value in values if _is_rounding(value)]
        is_rounded = 0 < len(dtypes) < len(values) and float_dtype(var) == "float32" and var not in self._outputs
        return dtypes[0] if is_rounded else ""


def _is_rounding(value: Expr) -> bool:
    return op_name(value) == "relax.astype" and value.attrs.dtype in (_FP16, _BF16)


class _ToBfloat16(PlainRewriter):
    """Makes conversions to fp16 such to bf16. The types of what is computed from them follow."""

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.astype" or not _is_half(value):
            return None
        return relax.op.astype(self.leaf(value.args[0]), _BF16)
