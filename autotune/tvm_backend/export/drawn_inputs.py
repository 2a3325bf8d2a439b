"""Draw random inputs that suit a model: pictures, sounds, indices, masks, and numbers in the range that it names.

A job keeps by which version its inputs are drawn, since on those it was found how far its runtime is from itself. The
first draws noise in place of pictures and sounds, and reads no ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.options import InputSpec
from autotune.tvm_backend.export.synthetic import picture, sound
from autotune.tvm_backend.models.hints import NO_HINTS, Hints
from autotune.tvm_backend.models.model import SOUND

Arrays = list[npt.NDArray[Any]]

_NOISE = 1  # the first version
_INTEGER_BOUND = 16  # for integers of unknown use; most tables that a model looks up have more rows
_CHANNELS = (1, 3, 4)
_MIN_IMAGE = 8
_MASK = "mask"
_BYTE = 255
_DEVIATIONS = 3  # of a normal distribution, from the middle of a range to its ends
_SHORTEST_SOUND = 256  # samples
_SOUND_AT_LEAST = 4000  # samples, of an input whose name does not say so


def draw(inputs: Sequence[InputSpec], seed: int, hints: Hints = NO_HINTS, version: int = _NOISE + 1) -> Arrays:
    """Draw random inputs.

    Images are synthetic pictures in 0..1, or in the range that the graph expects; bytes in 0..255. Sounds are in -1..1.
    Other floats have a standard normal distribution, or one within their range. Indices lie within their table. Masks
    are all ones.

    Args:
        seed: The seed of the random numbers.
        hints: What the model says of its inputs.
        version: 1 for noise in place of pictures and sounds.

    Returns:
        An array for each input, in the same order.
    """
    rng = np.random.default_rng(seed)
    return [_drawn(rng, item, hints, version) for item in inputs]


def _drawn(rng: np.random.Generator, item: InputSpec, hints: Hints, version: int) -> npt.NDArray[Any]:
    kind = np.dtype(item.dtype).kind
    if _MASK in item.name.lower():
        return np.ones(item.shape, item.dtype)
    made = None if version == _NOISE else _meaningful(rng, item, hints)
    if made is not None:
        return made.astype(item.dtype)
    if kind == "f" and _is_image(item.shape):
        return rng.random(item.shape).astype(item.dtype)
    if kind == "f":
        return np.asarray(rng.standard_normal(item.shape)).astype(item.dtype)
    bound = 2 if kind == "b" else hints.vocabularies.get(item.name) or _INTEGER_BOUND
    return np.asarray(rng.integers(0, bound, item.shape)).astype(item.dtype)


def _meaningful(rng: np.random.Generator, item: InputSpec, hints: Hints) -> npt.NDArray[Any] | None:
    """A picture, a sound, or numbers in a range that is known; None for other inputs."""
    is_float = np.dtype(item.dtype).kind == "f"
    given = hints.ranges.get(item.name)
    if is_float and given is not None and given[0] == given[1]:
        return np.full(item.shape, given[0], item.dtype)
    if (is_float or item.dtype == "uint8") and _is_image(item.shape) and item.name not in hints.vocabularies:
        low, high = given or (0.0, 1.0 if is_float else _BYTE)
        return low + (high - low) * picture(rng, item.shape, channels_last=not _has_channels_first(item.shape))
    if not is_float:
        return None
    low, high = given or (-1.0, 1.0)
    if _is_sound(item, hints):
        return min(-low, high) * sound(rng, item.shape) if low < 0 < high else None
    if given is None:
        return None
    numbers = (low + high) / 2 + (high - low) / (2 * _DEVIATIONS) * rng.standard_normal(item.shape)
    return np.clip(numbers, low, high)


def _is_image(shape: tuple[int, ...]) -> bool:
    if len(shape) != 4:
        return False
    return _has_channels_first(shape) or (shape[3] in _CHANNELS and min(shape[1:3]) >= _MIN_IMAGE)


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    return shape[1] in _CHANNELS and min(shape[2:]) >= _MIN_IMAGE


def _is_sound(item: InputSpec, hints: Hints) -> bool:
    """Whether an input has samples of a sound: what the graph or its name say, or that it is nothing but long."""
    longest = max(item.shape, default=0)
    if len(item.shape) > 3 or longest < _SHORTEST_SOUND:
        return False
    alone = sum(size > 1 for size in item.shape) == 1
    named = alone and any(word in item.name.lower() for word in SOUND)
    return item.name in hints.sounds or named or (alone and longest >= _SOUND_AT_LEAST)
