"""A model in a job's folder: one ONNX file, with its weights beside it where one such file cannot hold them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autotune.errors import ModelError, disk_problem
from autotune.storage.atomic import publish_bytes

_LARGEST = 2**31 - 2**24  # bytes of weights that protobuf still writes with the rest as one message
_INLINE = 1024  # bytes of a weight that stays in the file when the others are beside it


def is_large(proto: Any) -> bool:
    """Whether a model's weights are too many for one ONNX file."""
    return sum(len(item.raw_data) for item in proto.graph.initializer) > _LARGEST


def write_model(path: Path, weights: Path, proto: Any) -> None:
    """Write a model to `path`, and its large weights to `weights`, in the same folder, if it is large.

    A large model's weights are not in `proto` any more afterwards.

    Raises:
        DiskProblem: A file could not be written.
        ModelError: It is too large, and not for its weights.
    """
    import onnx
    from google.protobuf.message import EncodeError

    if not is_large(proto):
        try:
            publish_bytes(path, proto.SerializeToString())
        except (EncodeError, ValueError) as error:
            raise ModelError(f"the model cannot be kept as one ONNX file, which may have 2 GiB: {error}") from error
        return
    try:
        onnx.save(proto, str(path), save_as_external_data=True, location=weights.name, size_threshold=_INLINE)
        for file in (weights, path):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    except OSError as error:
        raise disk_problem("write", path, error) from error
