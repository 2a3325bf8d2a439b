"""Compute convolutions and products on tensor cores: in fp16 with sums in fp32, and with the channels innermost."""

from __future__ import annotations

import tvm
from tvm import relax

from autotune.tvm_backend.passes.constants import fold_constants
from autotune.tvm_backend.passes.rewrite import PlainRewriter, op_name, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule

# MetaSchedule recognises a convolution as a product of matrices, which tensor cores compute, in this layout.
_LAYOUTS = {"relax.nn.conv2d": ["NHWC", "OHWI"]}


def channels_last(mod: IRModule) -> IRModule:
    """Lay images out with their channels innermost.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
    """
    return fold_constants(relax.transform.ConvertLayout(_LAYOUTS)(mod))


def half_precision(mod: IRModule) -> IRModule:
    """Rewrite a module so that convolutions and products take fp16 and sum in fp32.

    What lies between them is computed in fp16 where TVM holds that for safe. Inputs and outputs keep their types.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
    """
    lower = [relax.transform.ConvertLayout(_LAYOUTS), relax.transform.ToMixedPrecision(out_dtype="float32")]
    mixed = tvm.transform.Sequential(lower)(mod)
    return fold_constants(rewrite_and_clean(mixed, _WithoutRoundTrips))


class _WithoutRoundTrips(PlainRewriter):
    """Drops conversions to fp16 and straight back, which lose digits for nothing."""

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) != "relax.astype":
            return None
        inner: Expr = self.values.get(value.args[0])
        if op_name(inner) != "relax.astype" or str(inner.args[0].ty.dtype) != str(value.ty.dtype):
            return None
        return self.leaf(inner.args[0])
