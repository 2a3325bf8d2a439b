"""A model in a job's folder: one ONNX file, with its weights beside it where one such file cannot hold them."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import IO

import onnx
from google.protobuf.message import EncodeError
from onnx.external_data_helper import set_external_data

from autotune.errors import ModelError, disk_problem
from autotune.storage.atomic import publish_bytes
from autotune.tvm_backend.types import ModelProto, TensorProto

_LARGEST = 2**31 - 2**24  # bytes of weights that protobuf still writes with the rest as one message
_FOUR = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT32)
_TWO = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_ONE = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
WIDTHS = {**dict.fromkeys(_FOUR, 4), **dict.fromkeys(_TWO, 2), **dict.fromkeys(_ONE, 1)}  # of elements, in bytes
_WIDEST = 16
INLINE = 1024  # bytes of a weight that stays in the file when the others are beside it


def is_large(proto: ModelProto) -> bool:
    """Whether a model's weights are too many for one ONNX file."""
    weights = [item for item in proto.graph.initializer if item.HasField("raw_data")]
    # To ask a weight for its length copies it, and for its size writes it: only where it must be known.
    return sum(map(_most_bytes, weights)) > _LARGEST and sum(len(item.raw_data) for item in weights) > _LARGEST


def _most_bytes(weight: TensorProto) -> int:
    elements: int = math.prod(weight.dims)
    return elements * WIDTHS.get(weight.data_type, _WIDEST)


def write_model(path: Path, weights: Path, proto: ModelProto) -> None:
    """Write a model to `path`, and its large weights to `weights`, in the same folder, if it is large.

    A large model's weights are not in `proto` any more afterwards.

    Raises:
        DiskProblem: A file could not be written.
        ModelError: It is too large, and not for its weights.
    """
    if not is_large(proto):
        _publish(path, proto)
        return
    try:
        onnx.save(proto, str(path), save_as_external_data=True, location=weights.name, size_threshold=INLINE)
        for file in (weights, path):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    except OSError as error:
        raise disk_problem("write", path, error) from error


class SharedWeights:
    """Writes models whose large weights are in one file beside them. What several of them have is in it once.

    Args:
        path: The file of the weights, in the folder of the models.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[bytes, int] = {}
        self._size = 0

    def write(self, path: Path, proto: ModelProto) -> None:
        """Write a model. Its large weights are not in `proto` any more afterwards.

        Raises:
            DiskProblem, ModelError: As for `write_model`.
        """
        large = [item for item in proto.graph.initializer if len(item.raw_data) >= INLINE]
        try:
            with self._path.open("ab") as file:
                for tensor in large:
                    place = self._place(tensor.raw_data, file)
                    set_external_data(tensor, self._path.name, place, len(tensor.raw_data))
                    tensor.ClearField("raw_data")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_problem("write", self._path, error) from error
        _publish(path, proto)

    def _place(self, data: bytes, file: IO[bytes]) -> int:
        """Return where a weight is in the file. It is written unless it is there."""
        key = hashlib.sha256(data).digest()
        if key not in self._places:
            file.write(data)
            self._places[key] = self._size
            self._size += len(data)
        return self._places[key]


def _publish(path: Path, proto: ModelProto) -> None:
    try:
        publish_bytes(path, proto.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise ModelError(f"the model cannot be kept as one ONNX file, which may have 2 GiB: {error}") from error
