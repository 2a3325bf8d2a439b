"""TVM's importer of ONNX, with the operators that it lacks and that cannot be written in terms of others.

A graph of old operators is converted to the version that the importer is written for. What `Slice`, `Resize` and others
take as attributes, or as empty constants, in old versions are inputs, or left out, in newer ones. The converted graph
is kept only where ONNX Runtime computes the same of both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import tvm
from tvm.relax.frontend.onnx import onnx_frontend

from autotune.errors import ModelError, OperatorRefused, Refusal, first_line, one_line
from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.converters import counted_operators as counted
from autotune.tvm_backend.models.onnx.converters import missing_operators as missing
from autotune.tvm_backend.models.onnx.converters import quantised_operators as converters
from autotune.tvm_backend.models.onnx.converters import resampling
from autotune.tvm_backend.models.onnx.converters.recurrent_operators import dynamic_lstm, recurrent
from autotune.tvm_backend.models.onnx.loop_bodies import open_loop
from autotune.tvm_backend.models.onnx.operators import corrected
from autotune.tvm_backend.models.onnx.operators.nodes import ADVICE, node_name, opset_of
from autotune.tvm_backend.models.onnx.simplify import RANDOM, Array, open_session
from autotune.tvm_backend.models.onnx.snapshot import is_large
from autotune.tvm_backend.operators.recurrent.layer import GATES
from autotune.tvm_backend.types import DeviceArray, Expr, GraphProto, IRModule, ModelProto, TensorProto

# Integers of 4 bits become bytes here. Kernels for matrices of few bits pack them again.
_HALF_BYTES = {onnx.TensorProto.INT4: np.int8, onnx.TensorProto.UINT4: np.uint8}
_WANTED = 13  # opset: axes and sizes are inputs, and any of Resize's may be left out
_SEED = 2026
_SIZES = 3  # the input of Resize that leaves no use for the one before it


def convert(fixed: ModelProto, inputs: Sequence[InputSpec]) -> ModelProto:
    """A graph of at least opset 13 that computes the same, with what it leaves unread left out.

    Args:
        fixed: The graph, as `fix_shapes` returns it.

    Returns:
        The graph, or `fixed` itself where ONNX cannot convert it or ONNX Runtime computes something else of the result.
    """
    newer = _newer(fixed, inputs)
    if opset_of(newer) < _WANTED:
        return fixed
    for node in newer.graph.node:
        if node.op_type != "Resize" or len(node.input) <= _SIZES or not node.input[_SIZES]:
            continue
        node.input[2] = ""
        if not any(
            item.name == "coordinate_transformation_mode" and item.s == b"tf_crop_and_resize" for item in node.attribute
        ):
            node.input[1] = ""
    return newer


def _newer(fixed: ModelProto, inputs: Sequence[InputSpec]) -> ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(fixed)
    if opset_of(fixed) >= _WANTED or is_large(fixed):
        return copy
    try:
        newer = onnx.version_converter.convert_version(copy, _WANTED)
        values = _values(inputs)
        same = zip(_run(fixed, inputs, values), _run(newer, inputs, values), strict=True)
        return newer if all(np.allclose(ours, theirs, 1e-4, 1e-5, equal_nan=True) for ours, theirs in same) else fixed
    except Exception:  # the converter and ONNX Runtime raise whatever they stumble over
        return fixed


def _values(inputs: Sequence[InputSpec]) -> dict[str, Array]:
    """Random floats, and zeros for the rest, which are valid indices."""
    generator = np.random.default_rng(_SEED)
    return {
        item.name: generator.standard_normal(item.shape).astype(item.dtype)
        if np.issubdtype(np.dtype(item.dtype), np.floating)
        else np.zeros(item.shape, item.dtype)
        for item in inputs
    }


def _run(proto: ModelProto, inputs: Sequence[InputSpec], values: dict[str, Array]) -> list[Array]:
    return list(open_session(proto, inputs).run(None, values))


_OPSETS = {"ScatterND": 18}  # which ONNX Runtime takes the reductions of in older ones, too

# Emits an operator: from the builder, its inputs and its attributes to its outputs.
Converter = Callable[..., Expr]


CONVERTERS: Mapping[str, Converter] = {
    **{kind: partial(recurrent, kind) for kind in GATES},
    "DynamicQuantizeLSTM": dynamic_lstm,
    "ConvInteger": converters.conv_integer,
    "DequantizeLinear": converters.dequantize_linear,
    "DynamicQuantizeLinear": converters.dynamic_quantize_linear,
    "MatMulInteger": converters.matmul_integer,
    "MatMulNBits": converters.matmul_n_bits,
    "BitCast": missing.bit_cast,
    "BitShift": corrected.bit_shift,
    "Col2Im": missing.columns_to_image,
    "CumProd": missing.cumulative_product,
    "DeformConv": missing.deformable_convolution,
    "EyeLike": missing.eye_like,
    "IsInf": corrected.is_inf,
    "ScatterElements": corrected.scatter_elements,
    "SpaceToDepth": corrected.space_to_depth,
    "Compress": counted.compress,
    "NonMaxSuppression": counted.non_maximum_suppression,
    "NonZero": counted.non_zero,
    "Unique": counted.unique,
    "Loop": open_loop,
    "QGemm": converters.qgemm,
    "QLinearConv": converters.qlinear_conv,
    "QLinearMatMul": converters.qlinear_matmul,
}

# The same for forms that TVM's importer gets wrong or makes slow. They return None for others, which are left to it.
_CORRECTED: Mapping[str, Callable[..., Expr | None]] = {
    "Clip": corrected.clip,
    "Concat": corrected.concat,
    "ConstantOfShape": corrected.number,
    "Gather": corrected.gather,
    "Max": partial(corrected.pairwise, tvm.relax.op.maximum),
    "Mean": corrected.mean,
    "Min": partial(corrected.pairwise, tvm.relax.op.minimum),
    "Pad": corrected.pad,
    "RMSNormalization": corrected.rms_normalization,
    "Resize": resampling.resize,
    "Split": corrected.split,
    "Sum": partial(corrected.pairwise, tvm.relax.op.add),
}


def import_graph(proto: ModelProto, shapes: Mapping[str, list[int]], dtypes: Mapping[str, str]) -> IRModule:
    """Import a graph.

    Args:
        proto: The graph, after `with_counts` and `with_placeholders`.
        shapes: Of its inputs by name.
        dtypes: Of its inputs by name.

    Raises:
        OperatorRefused: An operator is not taken, or not in its form.
        Exception: Whatever TVM's converters raise.
    """
    with _named(proto.graph):
        return _Importer(dict(shapes), dict(dtypes)).from_onnx(proto.graph, opset_of(proto))


@contextlib.contextmanager
def _named(graph: GraphProto) -> Iterator[None]:
    """Call operators without a name by their first output, for errors."""
    unnamed = [node for node in graph.node if not node.name]
    for node in unnamed:
        node.name = node_name(node)
    try:
        yield
    finally:
        for node in unnamed:
            node.ClearField("name")


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
        """Check that there is a rule for each operator.

        Raises:
            OperatorRefused: There is none for some. The first of them is named with the kinds of the others.
        """
        rules = {*onnx_frontend._get_convert_map(), *CONVERTERS, "Constant"}
        unknown = [node for node in graph.node if node.op_type not in rules]
        if not unknown:
            return
        first = unknown[0]
        others = ", ".join(sorted({node.op_type for node in unknown} - {first.op_type}))
        domain = f" of the domain {first.domain}" if first.domain not in ("", "ai.onnx") else ""
        reason = f"there is no rule for it{domain}" + (f", nor for {others}" if others else "")
        if first.op_type in RANDOM:
            reason = "it draws random numbers, so that no result can be verified"
        raise OperatorRefused.of(Refusal(first.op_type, node_name(first), reason, ADVICE))

    def _parse_array(self, tensor_proto: TensorProto) -> DeviceArray:
        if tensor_proto.data_type not in _HALF_BYTES:
            return super()._parse_array(tensor_proto)
        values = onnx.numpy_helper.to_array(tensor_proto)
        return tvm.runtime.tensor(values.astype(_HALF_BYTES[tensor_proto.data_type]))

    def _convert_operator(self, op_name: str, inputs: Sequence[Expr | None], attrs: dict[str, Any], opset: int) -> Expr:
        try:
            if op_name == "RoiAlign":
                corrected.check_roi_align(attrs)
            if op_name == "Conv":
                attrs = corrected.with_pads(inputs, attrs)
            if op_name in _CORRECTED and (otherwise := _CORRECTED[op_name](self.bb, list(inputs), attrs)) is not None:
                return otherwise
            if op_name not in CONVERTERS:
                return super()._convert_operator(op_name, inputs, attrs, max(opset, _OPSETS.get(op_name, 0)))
            return CONVERTERS[op_name](self.bb, list(inputs), attrs)
        except ModelError:
            raise  # from an operator inside this one
        except Exception as error:  # whatever converters stumble over
            name = str(attrs.get("tvm_custom", {}).get("name", ""))
            raise OperatorRefused.of(_refusal(op_name, name, opset, inputs, error)) from error


def _refusal(kind: str, name: str, opset: int, inputs: Sequence[Expr | None], error: Exception) -> Refusal:
    given = ", ".join(map(_shown, inputs))
    plain = isinstance(error, AssertionError | ValueError | NotImplementedError | tvm.error.OpNotImplemented)
    reason = first_line(error) if plain and str(error) else f"its importer fails with {type(error).__name__}"
    if not plain and str(error):
        reason += f" ({first_line(error)})"
    advice = f"export it in another form, or {ADVICE}"
    if fixable := [str(item) for item in inputs if _sets_a_shape(item)]:
        advice = f"fix its input with --value {fixable[0]}=NUMBER,..., {advice}"
    return Refusal(kind, name, reason, advice, opset, given)


def _shown(item: Expr | None) -> str:
    """An input for the user: its type and shape."""
    if item is None:
        return "none"
    shape = getattr(item.ty, "shape", None)
    dtype = getattr(item.ty, "dtype", None)
    if shape is None or dtype is None:
        return one_line(str(item.ty))
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def _sets_a_shape(item: Expr) -> bool:
    """Whether it may be an input of the model that says a shape, an axis or a number: a list of integers at most."""
    is_input = isinstance(item, tvm.relax.Var) and not isinstance(item, tvm.relax.DataflowVar)
    return is_input and str(getattr(item.ty, "dtype", "")).startswith("int") and int(item.ty.ndim) < 2
