"""A model as it is imported, and the shapes of its inputs.

A shape comes from the file or from what the user gave; without one, an error ends with the options to add.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.errors import AutotuneError, ModelError, OpenShapes, first_line, one_line
from autotune.options import Constant, InputSpec
from autotune.storage.formats import OpenBatch
from autotune.tvm_backend.types import IRModule, ModelProto

_FLOATS = "float"
_CHANNELS = (1, 3, 4)
# What a dimension is called, and a size that makes sense for it.
_BY_NAME = (
    (("batch", "bs"), 1),
    (("height", "width"), 224),
    (("point", "node", "edge", "box"), 128),
    (("channel",), 3),
    (("sample",), 16_000),
    (("seq", "len", "token", "time", "frame"), 128),
)
SOUND = ("wav", "audio", "pcm", "speech")  # what an input is called that takes samples
_PLUS = " + "  # as in past_sequence_length + sequence_length, a dimension of the decoders that optimum exports
_SECOND = 16_000  # of samples, at 16 kHz


@dataclass(frozen=True)
class Model:
    """An imported model. Inputs and outputs are in the order of the graph.

    `rewritten` is the ONNX graph that TVM was given where it is not the one in the file. `open_batches` are those that
    were taken as 1.
    """

    module: IRModule
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    rewritten: ModelProto = None
    open_batches: tuple[OpenBatch, ...] = ()


@dataclass(frozen=True)
class OpenInput:
    """An input as the file has it: an open dimension is its name, or empty; None where not even the rank is known."""

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None

    @property
    def fixed(self) -> tuple[int, ...] | None:
        if self.dims is None:
            return None
        sizes = tuple(dim for dim in self.dims if isinstance(dim, int))
        return sizes if len(sizes) == len(self.dims) else None


def resolve(
    path: Path,
    free: Sequence[OpenInput],
    overrides: Mapping[str, InputSpec],
    dims: Mapping[str, int],
    batches: Sequence[OpenBatch] = (),
    examples: Mapping[str, int] | None = None,
) -> tuple[InputSpec, ...]:
    """The inputs in the order of `free`, every dimension known.

    Args:
        overrides: Shapes (and types) by the name of the input; an empty dtype keeps the model's.
        dims: Sizes of open dimensions by their names.
        batches: Open batches that are taken as 1, see `open_batches`.
        examples: Sizes to advise for open dimensions by their names; others are guessed.

    Raises:
        OpenShapes: An input has an open dimension still.
        ModelError: An input or a dimension that was named does not exist.
    """
    _check_names(path, free, overrides, dims)
    with_batch = {item.input: item.shape for item in batches}
    named = [_named(item, dims, with_batch.get(item.name)) for item in free]
    open_ = [item for item in named if item.fixed is None and item.name not in overrides]
    if open_:
        raise _open_shapes(path, open_, {**(examples or {}), **dims})
    return tuple(_resolved(item, overrides.get(item.name)) for item in named)


def open_batches(
    free: Sequence[OpenInput], overrides: Mapping[str, InputSpec], dims: Mapping[str, int]
) -> tuple[OpenBatch, ...]:
    """Return the batches that are taken as 1: of all inputs nothing but the first dimension is open, and is a batch.

    That of a name whose size follows from the shape that was given for another input is none of them.

    Args:
        free: The inputs, as the file has them.
        overrides: Shapes that the user gave, by the name of the input.
        dims: Sizes that the user gave, by the name of the open dimension.
    """
    named = [_named(item, dims) for item in free if item.name not in overrides]
    open_ = [item for item in named if item.fixed is None]
    followed = {dim for item in free if item.name in overrides for dim in item.dims or () if dim != ""}
    if not all(map(_lacks_batch, open_)) or any(item.dims[0] in followed for item in open_ if item.dims):
        return ()
    return tuple(OpenBatch(item.name, str(item.dims[0]), (1, *map(int, item.dims[1:]))) for item in open_ if item.dims)


def _lacks_batch(item: OpenInput) -> bool:
    """Whether an input has a shape but for its first dimension, which is a batch for all that its name says."""
    if not item.dims or not isinstance(item.dims[0], str):
        return False
    only = all(isinstance(dim, int) for dim in item.dims[1:])
    return only and sensible(item.dtype, item.dims, {}, item.name)[0] == 1


def _resolved(item: OpenInput, override: InputSpec | None) -> InputSpec:
    if override is not None:
        return InputSpec(item.name, override.shape, override.dtype or item.dtype)
    return InputSpec(item.name, item.fixed or (), item.dtype)


def _check_names(
    path: Path, free: Sequence[OpenInput], overrides: Mapping[str, InputSpec], dims: Mapping[str, int]
) -> None:
    names = [item.name for item in free]
    unknown = sorted(set(overrides) - set(names))
    if unknown:
        raise ModelError(f"{path} has no input {unknown[0]!r}; its inputs: {', '.join(names)}")
    open_dims = {dim: None for item in free for dim in item.dims or () if isinstance(dim, str) and dim}
    unknown = sorted(set(dims) - set(open_dims))
    if unknown:
        raise ModelError(f"{path} has no dimension {unknown[0]!r}; its open ones: {', '.join(open_dims) or 'none'}")


def _named(item: OpenInput, sizes: Mapping[str, int], shape: tuple[int, ...] | None = None) -> OpenInput:
    """The input with the sizes of the dimensions that have one by name; with this shape if there is one."""
    if shape is not None:
        return OpenInput(item.name, item.dtype, shape)
    if item.dims is None:
        return item
    return OpenInput(item.name, item.dtype, tuple(_sized(dim, sizes) for dim in item.dims))


def _sized(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """The size of a dimension if it has one by name, or all have one that its name is the sum of; else the name."""
    if isinstance(dim, int) or dim in sizes:
        return dim if isinstance(dim, int) else sizes[dim]
    terms = dim.split(_PLUS)
    return sum(map(sizes.__getitem__, terms)) if len(terms) > 1 and sizes.keys() >= set(terms) else dim


def _open_shapes(path: Path, open_: Sequence[OpenInput], sizes: dict[str, int]) -> OpenShapes:
    """One line: which inputs lack a shape, and options that give each of them one."""
    shown = ", ".join(f"{item.name!r} ({_written(item)})" for item in open_)
    advised: list[str] = []
    for item in open_:
        shape = sensible(item.dtype, item.dims, sizes, item.name)
        advised.append(f"{item.name}={'x'.join(map(str, shape)) or 'scalar'}")
    what = "its shape" if len(open_) == 1 else "their shapes"
    words = shlex.join(word for text in advised for word in ("--input", text))
    line = f"{path}: no fixed shape is known for {shown}; add {what}, such as: {words}"
    return OpenShapes(line, tuple(advised))


def _written(item: OpenInput) -> str:
    return "?" if item.dims is None else "x".join(str(dim) or "?" for dim in item.dims)


def sensible(dtype: str, dims: tuple[int | str, ...] | None, sizes: dict[str, int], name: str = "") -> tuple[int, ...]:
    """A shape that an input is likely to have: 1x3x224x224 for an image, a sequence of 128, a batch of 1.

    Args:
        sizes: What was chosen for dimensions by name, which others of that name have, too; it is added to.
    """
    if dims is None:
        return (1, 3, 224, 224) if dtype.startswith(_FLOATS) else (1, 128)
    shape = []
    for axis, dim in enumerate(dims):
        likely = _size(dtype, dims, axis, name.lower())
        for term in str(dim).split(_PLUS) if _PLUS in str(dim) else ():
            sizes.setdefault(term, likely)
        sized = _sized(dim, sizes)
        size = sized if isinstance(sized, int) else likely
        if isinstance(dim, str) and dim:
            sizes[dim] = size
        shape.append(size)
    return tuple(shape)


def _size(dtype: str, dims: tuple[int | str, ...], axis: int, input_name: str) -> int:
    is_sound = dtype.startswith(_FLOATS) and any(word in input_name for word in SOUND)
    if is_sound and len(dims) <= 2 and axis == len(dims) - 1:
        return _SECOND
    name = str(dims[axis]).lower()
    for words, size in _BY_NAME:
        if any(word in name for word in words):
            return size
    if axis == 0:
        return 1
    if len(dims) != 4 or not dtype.startswith(_FLOATS):
        return 128
    channel = 3 if dims[3] in _CHANNELS and dims[1] not in _CHANNELS else 1
    return 3 if axis == channel else 224


def constant_array(value: Constant, rank: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """The value of an input that is a constant, as an array; one number has `rank` dimensions of one."""
    return np.array(value, dtype) if isinstance(value, list) else np.full((1,) * rank, value, dtype)


@contextlib.contextmanager
def as_model_error(path: Path, what: str) -> Iterator[None]:
    """Turn what a malformed model makes this code, its package and TVM raise into an error about the file.

    Args:
        what: What is wrong with it, such as `cannot be imported`.
    """
    try:
        yield
    except AutotuneError:
        raise
    except Exception as error:
        kind = type(error).__name__
        said = one_line(first_line(error))
        reason = f"{kind}: {said}" if said != kind else f"it is malformed, or of a form that is not known ({kind})"
        raise ModelError(f"{path} {what}: {reason}") from error
