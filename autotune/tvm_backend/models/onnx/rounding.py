"""What the last bits of its constants change in a model that rounds as it runs, such as one with dynamic quantisation.

Where such a model has no inputs in floats, it is all that shows how far its outputs jump.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from autotune.tvm_backend.models.onnx.simplify import graphs
from autotune.tvm_backend.models.onnx.snapshot import is_large
from autotune.tvm_backend.types import ModelProto

_ROUNDING = frozenset({"ArgMax", "ArgMin", "Ceil", "Floor", "QAttention", "QuantizeLinear", "Round", "TopK"})
_RESIZING = frozenset({"Resize", "Upsample"})  # whose constants say how large the output is
_QUANTISING = ("DynamicQuantize", "QLinear")  # what the names of other operators that round begin with
_TIMES = 4
_UNITS = 4  # in the last place: what elementary functions and sums of float32 are off by in any runtime
_SEED = 2026


def with_moved_constants(proto: ModelProto) -> Iterator[bytes]:
    """Yield a model several times, its float32 constants moved by some units in the last place; never if none rounds.

    Args:
        proto: The model.
    """
    nodes = [node for graph in graphs(proto.graph) for node in graph.node]
    kinds = {node.op_type for node in nodes}
    sizes = {name for node in nodes if node.op_type in _RESIZING for name in node.input[1:]}
    rounds = kinds & _ROUNDING or any(kind.startswith(_QUANTISING) for kind in kinds)
    generator = np.random.default_rng(_SEED)
    for _ in range(_TIMES if rounds and not is_large(proto) else 0):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        for tensor in copy.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name not in sizes:
                values = onnx.numpy_helper.to_array(tensor)
                signs = np.where(generator.random(values.shape) < 0.5, -1, 1)
                moved = (values + signs * _UNITS * np.spacing(values)).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
        yield copy.SerializeToString()
