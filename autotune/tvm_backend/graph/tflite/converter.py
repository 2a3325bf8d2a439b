"""TVM's importer of TensorFlow Lite, with what it lacks: sparse weights, those in float16, and a PReLU to fuse."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter


class Converter(OperatorConverter):  # type: ignore[misc]
    """Makes Relax of each operator."""

    def get_tensor_value(self, tensor_wrapper: Any, is_sparse: bool = False) -> Any:
        """Return the value of a constant, also of one that an operator made of another."""
        number = tensor_wrapper.tensor_idx
        if not is_sparse and self.is_prefetched(number):
            return self.get_prefetched_node(number)
        return super().get_tensor_value(tensor_wrapper, is_sparse)

    def convert_dequantize(self, op: Any) -> Any:
        """Widen a constant in float16 here. TVM takes 0.1 s for each of them."""
        (data,), (output,) = self.get_input_tensors(op), self.get_output_tensors(op)
        if self.get_tensor_type_str(data.tensor.Type()) != "float16":
            return super().convert_dequantize(op)
        self.set_prefetched_node(output.tensor_idx, self.get_tensor_value(data).astype(np.float32))
        return None

    def convert_prelu(self, op: Any) -> Any:
        """Write it as elementwise operators, which are fused to the convolution before it.

        TVM's own flattens the tensor, and the slopes are as many as its elements.
        """
        data, slope = map(self.get_tensor_expr, self.get_input_tensors(op))
        zero = relax.const(0.0, "float32")
        below = self.bb.normalize(relax.op.multiply(self.bb.normalize(relax.op.minimum(data, zero)), slope))
        return relax.op.add(self.bb.normalize(relax.op.maximum(data, zero)), below)
