"""Resize in the forms that TVM's importer lacks: a product with a constant matrix for each axis.

Coordinates and filters are those of ONNX's documentation of Resize, where ONNX Runtime differs from it as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, static_shape
from autotune.tvm_backend.models.onnx.operators.nodes import text_attribute
from autotune.tvm_backend.types import BlockBuilder, Expr

Values = npt.NDArray[np.floating[Any]]
_OWN_COORDINATES = ("half_pixel_symmetric", "tf_crop_and_resize")


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized."""

    place: int
    size: int  # its elements before
    resized: int  # those afterwards
    scale: float  # the ratio as the file states it, of which `resized` may be a rounded one
    region: tuple[float, float] = (0.0, 1.0)  # where what is taken begins and ends, as shares of the axis

    def coordinates(self, mode: str) -> Values:
        """Return the place before of each element afterwards, in float32 as ONNX Runtime does: ties are rounded."""
        x = np.arange(self.resized, dtype=np.float32)
        scale = np.float32(self.scale)
        half = (x + np.float32(0.5)) / scale - np.float32(0.5)
        last = np.float32(self.size - 1)
        if mode == "asymmetric":
            return x / scale
        if mode == "align_corners":
            return x * last / np.float32(max(self.resized - 1, 1))
        if mode == "pytorch_half_pixel":
            return half if self.resized > 1 else np.zeros(1, np.float32)
        if mode == "half_pixel_symmetric":
            return half + np.float32(self.size / 2) * (1 - np.float32(self.resized) / (scale * self.size))
        if mode == "tf_crop_and_resize":
            start, end = map(np.float32, self.region)
            if self.resized == 1:
                return np.full(1, (start + end) * last / 2, np.float32)
            return start * last + x * (end - start) * last / np.float32(self.resized - 1)
        return half


@dataclass(frozen=True)
class _Resize:
    """A Resize whose sizes are constant."""

    rank: int
    axes: tuple[_Axis, ...]
    mode: str
    coordinates: str
    rounding: str
    cubic: float
    antialias: bool
    exclude_outside: bool
    extrapolated: float

    def is_of_tvm(self) -> bool:
        """Return whether TVM's operators compute it: all spatial axes of an image, at the ratio of its sizes."""
        changed = [axis for axis in self.axes if axis.scale != 1 or axis.resized != axis.size]
        return (
            not self.antialias
            and self.coordinates not in _OWN_COORDINATES
            and self.rank in (3, 4, 5)
            and all(axis.place > 1 for axis in changed)
            and (self.mode == "nearest" or all(_is_even(axis) for axis in changed))
            and len(self.axes) == self.rank
        )


def _resize_of(inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> _Resize | None:
    """Return a Resize of known sizes; None if they are computed."""
    x, region, scales, sizes = [*inputs, None, None, None][:4]
    if x is None or is_tensor_constant(x) or not static_shape(x):
        return None
    if not all(item is None or is_tensor_constant(item) for item in (region, scales, sizes)):
        return None
    shape = static_shape(x)
    places = [int(place) % len(shape) for place in attributes.get("axes") or range(len(shape))]
    given = [shape[place] for place in places]
    if sizes is not None and sizes.value.numpy().size:
        policy = text_attribute(attributes, "keep_aspect_ratio_policy")
        resized, ratios = _of_sizes(given, sizes.value.numpy().tolist(), policy)
    elif scales is not None and scales.value.numpy().size:
        ratios = scales.value.numpy().astype(np.float64).tolist()
        resized = [math.floor(size * ratio) for size, ratio in zip(given, ratios, strict=True)]
    else:
        return None
    bounds = [0.0] * len(places) + [1.0] * len(places) if region is None else region.value.numpy().tolist()
    regions = zip(bounds[: len(places)], bounds[len(places) :], strict=True) if bounds else [(0.0, 1.0)] * len(places)
    return _Resize(
        len(shape),
        tuple(map(_Axis, places, given, resized, ratios, regions)),
        text_attribute(attributes, "mode", "nearest"),
        text_attribute(attributes, "coordinate_transformation_mode", "half_pixel"),
        text_attribute(attributes, "nearest_mode", "round_prefer_floor"),
        float(attributes.get("cubic_coeff_a", -0.75)),
        bool(attributes.get("antialias", 0)),
        bool(attributes.get("exclude_outside", 0)),
        float(attributes.get("extrapolation_value", 0.0)),
    )


def resize(builder: BlockBuilder, inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> Expr | None:
    """Emit a Resize, axis by axis; None for one that TVM's importer takes, or whose sizes are computed.

    Raises:
        ValueError: Integers are interpolated.
    """
    asked = _resize_of(inputs, attributes)
    if asked is None or asked.is_of_tvm():
        return None
    x = inputs[0]
    if asked.mode != "nearest" and not float_dtype(x):
        raise ValueError(f"it interpolates {x.ty.dtype}, for which there is no rule")
    outside = np.zeros(1, bool)
    for axis in asked.axes:
        coordinates = axis.coordinates(asked.coordinates)
        if asked.coordinates == "tf_crop_and_resize":
            shown = ((coordinates < 0) | (coordinates > axis.size - 1)).reshape(
                -1, *[1] * (asked.rank - 1 - axis.place)
            )
            outside = outside | shown
        if axis.resized != axis.size or axis.scale != 1 or axis.region != (0.0, 1.0):
            x = _along(builder, x, axis, coordinates, asked)
    if not outside.any():
        return x
    dtype = str(x.ty.dtype)
    return builder.emit(relax.op.where(relax.const(outside, "bool"), relax.const(asked.extrapolated, dtype), x))


def _along(builder: BlockBuilder, x: Expr, axis: _Axis, coordinates: Values, asked: _Resize) -> Expr:
    if asked.mode == "nearest":
        places = np.clip(_rounded(coordinates, asked.rounding), 0, axis.size - 1).astype(np.int64)
        return builder.emit(relax.op.take(x, relax.const(places), axis.place))
    matrix = relax.const(_matrix(axis, coordinates, asked).astype(str(x.ty.dtype)))
    rank = asked.rank
    if axis.place == rank - 2:
        return builder.emit(relax.op.matmul(matrix, x))
    order = [place for place in range(rank) if place != axis.place]
    last = x if axis.place == rank - 1 else builder.emit(relax.op.permute_dims(x, [*order, axis.place]))
    product = builder.emit(relax.op.matmul(last, builder.emit(relax.op.permute_dims(matrix))))
    if axis.place == rank - 1:
        return product
    back = [rank - 1 if place == axis.place else place - (place > axis.place) for place in range(rank)]
    return builder.emit(relax.op.permute_dims(product, back))


def _matrix(axis: _Axis, coordinates: Values, asked: _Resize) -> Values:
    """Return what each element afterwards takes of each before, as (resized, size)."""
    stretch = max(1 / axis.scale, 1.0) if asked.antialias else 1.0
    reach = (1 if asked.mode == "linear" else 2) * stretch
    taps = np.arange(math.ceil(2 * reach) + 1)
    near = np.floor(coordinates - reach).astype(int)[:, None] + taps
    distance = np.abs(near - coordinates[:, None]) / stretch
    shares = np.maximum(1 - distance, 0) if asked.mode == "linear" else _cubic(distance, asked.cubic)
    if asked.exclude_outside:
        shares = shares * ((near >= 0) & (near < axis.size))
    shares = shares / shares.sum(axis=1, keepdims=True)
    matrix: Values = np.zeros((axis.resized, axis.size))
    rows = np.broadcast_to(np.arange(axis.resized)[:, None], near.shape)
    np.add.at(matrix, (rows, np.clip(near, 0, axis.size - 1)), shares)
    return matrix


def _cubic(distance: Values, a: float) -> Values:
    """Return Keys's cubic kernel: Cubic convolution interpolation for digital image processing (1981)."""
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    outer = a * (((distance - 5) * distance + 8) * distance - 4)
    shares: Values = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))
    return shares


def _rounded(coordinates: Values, mode: str) -> Values:
    if mode == "floor":
        return np.floor(coordinates)
    if mode == "ceil":
        return np.ceil(coordinates)
    rounded: Values = np.ceil(coordinates - 0.5) if mode == "round_prefer_floor" else np.floor(coordinates + 0.5)
    return rounded


def _of_sizes(given: Sequence[int], sizes: Sequence[int], policy: str) -> tuple[list[int], list[float]]:
    """Return the sizes of the result and the ratios, for a policy about the aspect ratio."""
    ratios = [wanted / size for wanted, size in zip(sizes, given, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        return list(map(int, sizes)), ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(size * ratio + 0.5) for size in given], [ratio] * len(given)


def _is_even(axis: _Axis) -> bool:
    return abs(axis.scale * axis.size - axis.resized) < 1e-6 * axis.resized
