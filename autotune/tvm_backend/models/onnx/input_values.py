"""What the graph of an ONNX model says of the values of its inputs: their ranges, and which are sounds.

A network that quantises an input names its range. One that normalises its pictures says whether they are in 0..1 or in
0..255. A bound, with which a constant is compared, has the value that lets all of it through. A convolution over one
channel of samples reads a sound, and so does a Fourier transform; some exporters write the sample rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from autotune.tvm_backend.types import ModelProto, NodeProto

Array = npt.NDArray[np.float64]
Range = tuple[float, float]

_MOVES = frozenset(["Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
_WINDOWS = frozenset(["Pad", "Slice"])
_AT_MOST = frozenset({"LessOrEqual", "Less"})  # than the input
_AT_LEAST = frozenset({"GreaterOrEqual", "Greater"})
_AFFINE = frozenset({"Add", "Div", "Mul", "Sub"})
_SPECTRA = frozenset({"DFT", "STFT"})
_SAMPLE_RATES = frozenset({"sample_rate", "sampling_rate", "sr"})  # as exporters name it
_UNIT = (0.0, 1.0)
_BYTES = (0.0, 255.0)
_WIDEST = 16.0  # what is normalised spans less: 255 times a larger factor is for pictures in 0..1
_MOST_CHANNELS = 4
_BEYOND = 0.01  # of what a table spans
_IMAGE_RANK = 4
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_INTEGERS = {
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.INT16: "int16",
    onnx.TensorProto.UINT16: "uint16",
}


class InputValues:
    """Reads a graph.

    Attributes:
        ranges: The least and the largest value of inputs, by name; the same twice for a bound.
        sounds: The names of the inputs that are samples of a sound.
    """

    def __init__(self, proto: ModelProto) -> None:
        graph = proto.graph
        self._constants = {item.name: item for item in graph.initializer}
        self._readers = dict[str, list[NodeProto]]()
        for node in graph.node:
            if node.op_type == "Constant":
                self._constants.update((node.output[0], item.t) for item in node.attribute if item.name == "value")
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        inputs = {item.name: item for item in graph.input if item.name not in self._constants}
        kinds = {name: item.type.tensor_type for name, item in inputs.items()}
        ranks = {name: len(kind.shape.dim) for name, kind in kinds.items() if kind.elem_type in _FLOATS}
        ranges = {name: self._range(name, rank) for name, rank in ranks.items()}
        self.ranges: Mapping[str, Range] = {name: both for name, both in ranges.items() if both is not None}
        rated = any(item.key.lower() in _SAMPLE_RATES for item in proto.metadata_props)
        self.sounds = frozenset(name for name in ranks if rated or self._is_filtered(name))

    def _after(self, name: str, moves: frozenset[str]) -> Iterator[tuple[str, NodeProto]]:
        """Yield what reads a value, also after operators that only move it, with the name under which it is read."""
        names = [name]
        for moved in names:
            for node in self._readers.get(moved, []):
                if node.op_type in moves and node.input[0] == moved:
                    names.extend(item for item in node.output if item not in names)
                else:
                    yield moved, node

    def _range(self, name: str, rank: int) -> Range | None:
        for moved, node in self._after(name, _MOVES):
            if node.op_type == "QuantizeLinear" and node.input[0] == moved:
                return self._quantised(node)
            if node.op_type in _AT_LEAST | _AT_MOST:
                return self._bound(moved, node)
            if node.op_type in _AFFINE and rank == _IMAGE_RANK:
                return self._normalised(moved, node)
        return None

    def _quantised(self, node: NodeProto) -> Range | None:
        scale = self._constant(node.input[1])
        zero = self._constants.get(node.input[2]) if len(node.input) > 2 else None
        if scale is None or scale.size != 1 or (zero is not None and zero.data_type not in _INTEGERS):
            return None
        kind = np.iinfo(np.dtype(_INTEGERS[zero.data_type] if zero is not None else "uint8"))
        origin = float(numpy_helper.to_array(zero).item()) if zero is not None else 0.0
        return float(scale.item()) * (kind.min - origin), float(scale.item()) * (kind.max - origin)

    def _bound(self, name: str, node: NodeProto) -> Range | None:
        """The value of a bound beyond all elements of a constant that it is compared with."""
        first = node.input[0] == name
        values = self._constant(node.input[1 if first else 0])
        if values is None or values.size < 2:
            return None
        beyond = _BEYOND * float(np.ptp(values))
        is_lower = (node.op_type in _AT_LEAST) != first
        bound = float(values.min()) - beyond if is_lower else float(values.max()) + beyond
        return bound, bound

    def _normalised(self, name: str, node: NodeProto) -> Range | None:
        """In which of the two usual ranges the pictures are that become `factor * x + offset`."""
        factor = np.ones(1)
        offset = np.zeros(1)
        while node.op_type in _AFFINE:
            constant = self._constant(node.input[1 if node.input[0] == name else 0])
            second = node.input[0] != name
            if constant is None or constant.size > _MOST_CHANNELS or (second and node.op_type in ("Div", "Sub")):
                break
            constant = constant.reshape(-1)
            if node.op_type in ("Add", "Sub"):
                offset = offset + (constant if node.op_type == "Add" else -constant)
            else:
                factor, offset = (
                    (side * constant if node.op_type == "Mul" else side / constant) for side in (factor, offset)
                )
            name = node.output[0]
            following = [reader for moved, reader in self._after(name, _MOVES) if moved == name]
            if len(following) != 1:
                break
            (node,) = following
        if (factor == 1).all() and (offset == 0).all():
            return None
        with np.errstate(all="ignore"):
            middle = float(np.max(-offset / factor))
        return _BYTES if middle > 1 or 255 * float(np.abs(factor).max()) <= _WIDEST else _UNIT

    def _is_filtered(self, name: str) -> bool:
        """Whether an input goes, a window at a time, through filters over one channel of samples."""
        for moved, node in self._after(name, _MOVES | _WINDOWS):
            if node.op_type in _SPECTRA:
                return True
            weight = self._constants.get(node.input[1]) if node.op_type == "Conv" and node.input[0] == moved else None
            if weight is not None and len(weight.dims) == 3 and weight.dims[1] == 1:
                return True
        return False

    def _constant(self, name: str) -> Array | None:
        tensor = self._constants.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return np.asarray(numpy_helper.to_array(tensor), np.float64)
