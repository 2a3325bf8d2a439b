"""The inputs that a model is verified and compared on: the user's, or drawn so that they make sense for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import BadInput, VerificationError, one_line
from autotune.storage.formats import InputSpec
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.graph.model import parse_file
from autotune.tvm_backend.graph.vocabulary import vocabularies

Arrays = list[npt.NDArray[Any]]

_INTEGER_BOUND = 16  # of integers that are no index into a table, small enough for most that are
_CHANNELS = (1, 3, 4)
_SMALLEST_IMAGE = 8
_MASK = "mask"


def job_inputs(paths: JobPaths, inputs: Sequence[InputSpec], file: Path | None, seed: int) -> Arrays:
    """The inputs for a job, in the order of its spec: from `file`, or drawn where there is none.

    Raises:
        BadInput: the file lacks an input, or has one of another shape or type.
    """
    if file is not None:
        return load(file, inputs)
    graph = paths.rewritten_model if paths.rewritten_model.exists() else paths.model
    return draw(inputs, seed, vocabularies(parse_file(graph)))


def draw(inputs: Sequence[InputSpec], seed: int, rows: Mapping[str, int] | None = None) -> Arrays:
    """Seeded inputs by kind: images in 0..1, other floats normal, indices within their table, masks of ones.

    Args:
        rows: of the tables that inputs are indices into, by the name of the input.
    """
    rng = np.random.default_rng(seed)
    return [_drawn(rng, item, (rows or {}).get(item.name)) for item in inputs]


def _drawn(rng: np.random.Generator, item: InputSpec, rows: int | None) -> npt.NDArray[Any]:
    kind = np.dtype(item.dtype).kind
    if _MASK in item.name.lower():
        return np.ones(item.shape, item.dtype)
    if kind == "f" and _is_image(item.shape):
        return rng.random(item.shape).astype(item.dtype)
    if kind == "f":
        return np.asarray(rng.standard_normal(item.shape)).astype(item.dtype)
    bound = 2 if kind == "b" else rows or _INTEGER_BOUND
    return np.asarray(rng.integers(0, bound, item.shape)).astype(item.dtype)


def _is_image(shape: tuple[int, ...]) -> bool:
    if len(shape) != 4:
        return False
    first = shape[1] in _CHANNELS and min(shape[2:]) >= _SMALLEST_IMAGE
    return first or (shape[3] in _CHANNELS and min(shape[1:3]) >= _SMALLEST_IMAGE)


def load(file: Path, inputs: Sequence[InputSpec]) -> Arrays:
    """The arrays of an NPZ file, by the names of the inputs.

    Raises:
        BadInput: it cannot be read, lacks an input, or has one of another shape or type.
    """
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # NumPy and zipfile raise many kinds for a file that is none of theirs
        raise BadInput(f"{file} is not an NPZ file of plain arrays") from error
    return [_checked(file, item, arrays) for item in inputs]


def _checked(file: Path, item: InputSpec, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if item.name not in arrays:
        raise BadInput(f"{file} has no array {item.name!r}; it has: {', '.join(sorted(arrays)) or 'none'}")
    array = arrays[item.name]
    if array.shape != item.shape or array.dtype != np.dtype(item.dtype):
        found = f"{array.dtype} {array.shape}"
        raise BadInput(f"{file}: array {item.name!r} is {found}, and the model takes {item.dtype} {item.shape}")
    return array


def check_reference(run: Any, given: bool) -> None:
    """Run the reference once.

    Args:
        given: whether the user gave the inputs.

    Raises:
        VerificationError: it fails on these inputs.
    """
    try:
        run()
    except Exception as error:  # ONNX Runtime's exceptions have no common class but this one
        way = "" if given else "; random inputs may be none that it can take: give real ones with --inputs FILE.npz"
        raise VerificationError(f"ONNX Runtime cannot run the model as submitted ({one_line(error)}){way}") from error
