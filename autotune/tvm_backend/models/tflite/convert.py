"""A model of TensorFlow Lite as a Relax module: TVM's importer, with what it lacks.

That is sparse weights, those in float16, and a PReLU to fuse.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tflite.GatherOptions import GatherOptions
from tvm import relax
from tvm.relax.frontend.tflite import from_tflite
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, get_tensor_name

from autotune.errors import OperatorRefused, Refusal, first_line, one_line
from autotune.tvm_backend.expressions import is_tensor_constant, op_name
from autotune.tvm_backend.graph.channels_first import put_channels_first
from autotune.tvm_backend.graph.constants import drop_empty_parts, fold_constants
from autotune.tvm_backend.types import Expr, IRModule, LiteOperator, TensorWrapper

# What moves elements, and fills with zeros, is right for quantised tensors, too: the scale stays as it is.
_MOVES = frozenset(
    {"BATCH_TO_SPACE_ND", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND", "MIRROR_PAD", "PACK", "PAD", "PADV2"}
    | {"RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V"}
    | {"SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"}
)
_SHAPED = frozenset({"EXPAND_DIMS", "RESHAPE", "SQUEEZE"})


def convert(path: Path, model: Any) -> IRModule:
    """Make Relax of a model, with its channels first.

    Args:
        path: The file that errors are about.
        model: What is in it, as the package `tflite` has it.

    Raises:
        ModelError: TVM's importer lacks an operator.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = from_tflite(model, op_converter=_Converter)
    except OperatorRefused as error:
        raise error.in_file(path) from error.__cause__
    module["main"] = module["main"].without_attr("params")  # the weights once more
    return put_channels_first(fold_constants(drop_empty_parts(module), but=("relax.dequantize",)))


class _Converter(OperatorConverter):  # type: ignore[misc]
    """Makes Relax of each operator."""

    _SUPPORTED_QUANTIZED_OPS = OperatorConverter._SUPPORTED_QUANTIZED_OPS | _MOVES

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        rules: Mapping[str, Callable[..., Expr | None]] = vars(self)["convert_map"]
        self.convert_map = {name: partial(self._convert, name, rule) for name, rule in rules.items()}

    def _convert(self, name: str, rule: Callable[..., Expr | None], op: LiteOperator) -> Expr | None:
        """Make Relax of an operator, with errors that name it."""
        try:
            return rule(op=op)
        except OperatorRefused:
            raise
        except Exception as error:  # whatever TVM's importer stumbles over
            raise OperatorRefused.of(self._refusal(op, first_line(error))) from error

    def _refusal(self, op: LiteOperator, reason: str) -> Refusal:
        made = ", ".join((item.tensor.Name() or b"").decode("utf-8", "replace") for item in self.get_output_tensors(op))
        advice = "convert the model with fixed shapes, or see docs/guides/models.md"
        return Refusal(self.get_op_code_str(op), one_line(made), one_line(reason), advice)

    def get_tensors(self, tensors_idx_list: Sequence[int]) -> list[TensorWrapper]:
        """Read tensors. The axis of a single scale says nothing, and TVM wants 0."""
        tensors = super().get_tensors(tensors_idx_list)
        for item in tensors:
            if item.qnn_params is not None and not item.qnn_params["scale"].value.numpy().shape:
                item.qnn_params["axis"] = 0
        return list(tensors)

    def check_unsupported_ops(self) -> None:
        """Check that there is a rule for each operator.

        Raises:
            OperatorRefused: There is none for one.
        """
        for op in map(self.subgraph.Operators, range(self.subgraph.OperatorsLength())):
            name = self.get_op_code_str(op)
            tensors = (*self.get_input_tensors(op), *self.get_output_tensors(op))
            if name not in self.convert_map:
                raise OperatorRefused.of(self._refusal(op, "there is no rule for it"))
            if name not in self._SUPPORTED_QUANTIZED_OPS and any(item.qnn_params is not None for item in tensors):
                raise OperatorRefused.of(self._refusal(op, "there is no rule for it on quantised tensors"))

    def convert_reshape(self, op: LiteOperator) -> Expr:
        """Give a tensor another shape, which is a constant.

        Raises:
            ValueError: It is computed from values: one from shapes is a constant by now.
        """
        _, *shape = self.get_input_tensors(op)
        if shape and self.has_expr(shape[0].tensor_idx):
            raise ValueError("its shape is computed from values")
        return super().convert_reshape(op)

    def convert_gather(self, op: LiteOperator) -> Expr:
        """Take entries along an axis. TVM's own checks constant indices once for each element of the result, in Python.

        Raises:
            ValueError: An index is beyond the end of the axis.
        """
        data, indices = self.get_input_tensors(op)
        if self.has_expr(indices.tensor_idx):
            return super().convert_gather(op)
        options = GatherOptions()
        options.Init(op.BuiltinOptions().Bytes, op.BuiltinOptions().Pos)
        value = self.get_tensor_value(indices)
        sizes = self.get_tensor_shape(data)
        if value.size and not 0 <= value.min() <= value.max() < sizes[options.Axis()]:
            raise ValueError("an index is beyond the end of the axis")
        if options.BatchDims():
            raise ValueError("it takes the entries of each batch")
        return relax.op.take(self.get_tensor_expr(data), relax.const(value), axis=options.Axis(), mode="fast")

    def convert_rfft2d(self, op: LiteOperator) -> Expr:
        """Write the real part of a transform of rows as a product with cosines, where nothing reads the other part.

        As frames of sound are windows in a row, and a cast to floats takes the real part.
        """
        data, length = self.get_input_tensors(op)
        (output,) = self.get_output_tensors(op)
        height, width = (int(size) for size in self.get_tensor_value(length))
        sizes = [int(size) for size in self.get_tensor_shape(data)]
        if height != 1 or sizes[-2:] != [1, width] or not self._is_read_as_real(output.tensor_idx):
            return super().convert_rfft2d(op)
        turns = np.outer(np.arange(width), np.arange(width // 2 + 1)) % width * (2 * np.pi / width)
        rows = self.bb.normalize(relax.op.reshape(self.get_tensor_expr(data), [math.prod(sizes) // width, width]))
        product = self.bb.normalize(relax.op.matmul(rows, relax.const(np.cos(turns).astype(np.float32))))
        return relax.op.reshape(product, [*sizes[:-1], width // 2 + 1])

    def _is_read_as_real(self, number: int) -> bool:
        """Whether every operator that reads a tensor takes its real part, perhaps after a change of shape."""
        operators = map(self.subgraph.Operators, range(self.subgraph.OperatorsLength()))
        readers = [op for op in operators if number in op.InputsAsNumpy()]
        return bool(readers) and number not in self.subgraph.OutputsAsNumpy() and all(map(self._takes_real, readers))

    def _takes_real(self, op: LiteOperator) -> bool:
        kind = self.get_op_code_str(op)
        return kind == "CAST" or (kind in _SHAPED and self._is_read_as_real(int(op.Outputs(0))))

    def convert_fully_connected(self, op: LiteOperator) -> Expr:
        """Multiply rows, whatever the shape in which the file has them."""
        data, weights = self.get_input_tensors(op)[:2]
        (output,) = self.get_output_tensors(op)
        sizes = [int(size) for size in self.get_tensor_shape(output)]
        expr = self.get_tensor_expr(data)
        width = int(self.get_tensor_shape(weights)[1])
        given = [int(size) for size in self.get_tensor_shape(data)]
        if len(given) == 2 and given[1] == width:
            return super().convert_fully_connected(op)
        name = get_tensor_name(self.subgraph, data.tensor_idx)
        rows = self.bb.normalize(relax.op.reshape(expr, [math.prod(given) // width, width]))
        self.exp_tab.set_expr(name, rows, force_override=True)
        try:
            return relax.op.reshape(super().convert_fully_connected(op), sizes)
        finally:
            self.exp_tab.set_expr(name, expr, force_override=True)

    def convert_expand_dims(self, op: LiteOperator) -> Expr:
        """Put an axis of one in; TVM's own passes an argument too many."""
        data, place = self.get_input_tensors(op)
        return relax.op.expand_dims(self.get_tensor_expr(data), int(np.asarray(self.get_tensor_value(place)).item()))

    def get_tensor_value(self, tensor_wrapper: TensorWrapper, is_sparse: bool = False) -> Any:
        """Return the value of a constant, also of one that an operator made of another."""
        number = tensor_wrapper.tensor_idx
        if not is_sparse and self.is_prefetched(number):
            return self.get_prefetched_node(number)
        if not is_sparse and not tensor_wrapper.buffer.DataLength() and 0 not in self.get_tensor_shape(tensor_wrapper):
            name = (tensor_wrapper.tensor.Name() or b"").decode("utf-8", "replace")
            raise ValueError(f"{name!r} is computed while the model runs, and has to be a constant")
        return super().get_tensor_value(tensor_wrapper, is_sparse)

    def convert_dequantize(self, op: LiteOperator) -> Expr | None:
        """Widen a constant in float16 here. TVM takes 0.1 s for each of them."""
        (data,) = self.get_input_tensors(op)
        (output,) = self.get_output_tensors(op)
        if self.get_tensor_type_str(data.tensor.Type()) != "float16":
            return super().convert_dequantize(op)
        self.set_prefetched_node(output.tensor_idx, self.get_tensor_value(data).astype(np.float32))
        return None

    def dequantize(self, expr: Expr, tensor: TensorWrapper) -> Expr:
        """Make floats of integers. Those of a bias are computed here: what adds them takes constants."""
        if not is_tensor_constant(expr) or str(expr.ty.dtype) != "int32":
            return super().dequantize(expr, tensor)
        scale = tensor.qnn_params["scale"].value.numpy()
        return relax.const(np.multiply(expr.value.numpy().astype(np.float32), scale), "float32")

    def convert_qnn_fused_activation_function(
        self, expr: Expr, fused_activation_fn: int, scale: float, zero_point: int, dtype: str
    ) -> Expr:
        """Apply an activation to what is quantised and not to the result, as ONNX has it.

        TVM's own average of integers rounds towards zero; in floats it is rounded when it is quantised.
        """
        numbers = relax.const(np.float32(scale)), relax.const(int(zero_point), "int32")
        value = self._average(expr, numbers) if op_name(expr) == "relax.astype" else expr
        if op_name(value) == "relax.quantize":
            inner = self.convert_fused_activation_function(value.args[0], fused_activation_fn)
            return relax.op.quantize(inner, *value.args[1:], axis=int(value.attrs.axis), out_dtype=dtype)
        return super().convert_qnn_fused_activation_function(expr, fused_activation_fn, scale, zero_point, dtype)

    def _average(self, expr: Expr, numbers: tuple[Expr, Expr]) -> Expr:
        """The average of integers that TVM makes, in floats that are quantised; any other expression itself."""
        pool = expr.args[0]
        if op_name(pool) != "relax.nn.avg_pool2d":
            return expr
        data = self.bb.normalize(relax.op.dequantize(pool.args[0].args[0], *numbers, axis=0))
        made = self.bb.normalize(relax.Call(pool.op, [data], pool.attrs))
        return relax.op.quantize(made, *numbers, axis=0, out_dtype=str(expr.attrs.dtype))

    def convert_prelu(self, op: LiteOperator) -> Expr:
        """Write it as elementwise operators, which are fused to the convolution before it.

        TVM's own flattens the tensor, and the slopes are as many as its elements.
        """
        data, slope = map(self.get_tensor_expr, self.get_input_tensors(op))
        zero = relax.const(0.0, "float32")
        below = self.bb.normalize(relax.op.multiply(self.bb.normalize(relax.op.minimum(data, zero)), slope))
        return relax.op.add(self.bb.normalize(relax.op.maximum(data, zero)), below)
