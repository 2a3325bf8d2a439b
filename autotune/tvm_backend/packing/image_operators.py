"""What operators do with the channels and pixels of images, once for all encodings and element types.

Each kind of operator is recognised here, and says what it becomes on images in blocks of channels, which TVM's own
operators compute, and on images in chunks, for which there are kernels. Another one is a class here and a line of
`MOVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter
from typing import Any, TypeAlias

from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.graph.rewrite import Rewriter
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import PackedElement
from autotune.tvm_backend.operators.images import (
    concat_program,
    enlarge_program,
    max_pool_program,
    slice_program,
)
from autotune.tvm_backend.packing.encodings import PLAIN, Forms, Shape, in_blocks
from autotune.tvm_backend.types import Call, Expr, PrimFunc

Emit: TypeAlias = Callable[[Expr], Expr]
_NO_KERNEL = (0, 0)
_WHOLE = Window((1, 1))  # of a window that is the whole image
PART = "part"  # what `MOVES` calls a part of a tuple
_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round"))


@dataclass(frozen=True)
class Chunks:
    """Images in chunks, and how an operator is computed of them.

    Attributes:
        graph: What its kernel is added to.
        element: The type of their elements.
        images: What it reads.
        program: What computes it for that type; None where elements are only copied, or the largest is taken.
        constants: What the program reads beside the images.
    """

    graph: Rewriter
    element: PackedElement
    images: Sequence[Expr]
    program: PrimFunc | None = None
    constants: Sequence[Expr] = ()

    @property
    def shape(self) -> Shape:
        """That of the first image."""
        return static_shape(self.images[0])

    def kernel(self, name: str, program: PrimFunc, shape: Sequence[int]) -> Expr:
        """Call the kernel that computes the operator."""
        operands = [*self.images, *self.constants]
        return self.graph.kernel(program, f"{self.element.name}_{name}", operands, shape, self.element.dtype)


@dataclass(frozen=True)
class ImageOperator:
    """An operator on the pixels or channels of images (N, C, H, W).

    Attributes:
        images: What it reads.
    """

    images: tuple[Expr, ...]

    @property
    def has_kernel(self) -> bool:
        """Whether there is a kernel for it on images in chunks."""
        return True

    def fits(self, _lanes: int) -> bool:
        """Return whether it takes chunks of so many channels as they are."""
        return True

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        """Return what it becomes on images in blocks of channels; None if it has to get plain ones.

        Args:
            images: What it reads.
            emit: Binds what computes it, where something else follows.
        """
        raise NotImplementedError

    def in_chunks(self, chunks: Chunks) -> Expr:
        """Compute it on images in chunks."""
        raise NotImplementedError


class Join(ImageOperator):
    """Channels of images that are put together."""

    @classmethod
    def of(cls, call: Call, value_of: Callable[[Expr], Expr]) -> Join | None:
        """Return what a concatenation of channels puts together; None for one along another axis.

        Args:
            value_of: Returns what a variable is bound to, or the expression itself.
        """
        joined = value_of(call.args[0])
        along_channels = len(static_shape(call)) == 4 and int(call.attrs.axis or 0) % 4 == 1
        return cls(tuple(joined.fields)) if along_channels and isinstance(joined, relax.Tuple) else None

    def fits(self, lanes: int) -> bool:
        return all(static_shape(item)[1] % lanes == 0 for item in self.images)

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        return in_blocks(block, relax.op.concat(list(images), axis=1))

    def in_chunks(self, chunks: Chunks) -> Expr:
        shapes = [static_shape(item) for item in chunks.images]
        program = chunks.program or concat_program(shapes, chunks.element.dtype)
        return chunks.kernel("concat", program, (*shapes[0][:3], sum(shape[3] for shape in shapes), LANES))


@dataclass(frozen=True)
class Part(ImageOperator):
    """Some channels of an image: so many from one on.

    Attributes:
        count: How many.
        is_slice: Whether it is a slice, which in blocks is left to TVM, and not a part of a split.
    """

    first: int
    count: int
    is_slice: bool = False

    @classmethod
    def of_split(cls, part: Expr, value_of: Callable[[Expr], Expr]) -> Part | None:
        """Return what a part of split channels is; None for a part of something else."""
        split = value_of(part.tuple_value)
        if op_name(split) != "relax.split" or len(static_shape(part)) != 4 or int(split.attrs.axis) % 4 != 1:
            return None
        sizes = [int(item.shape.values[1]) for item in part.tuple_value.ty.fields]
        return cls((split.args[0],), sum(sizes[: part.index]), sizes[part.index])

    def fits(self, lanes: int) -> bool:
        return self.first % lanes == self.count % lanes == 0

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        bounds = {"begin": [self.first // block], "end": [(self.first + self.count) // block]}
        return None if self.is_slice else in_blocks(block, relax.op.strided_slice(*images, axes=[1], **bounds))

    def in_chunks(self, chunks: Chunks) -> Expr:
        count = self.count // LANES
        program = slice_program(chunks.shape, self.first // LANES, count, chunks.element.dtype)
        return chunks.kernel("slice", program, (*chunks.shape[:3], count, LANES))


@dataclass(frozen=True)
class OfTvm(ImageOperator):
    """An operator on height and width, which TVM computes in blocks, and which may have a kernel in chunks."""

    call: Call

    @property
    def has_kernel(self) -> bool:
        return False

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        names = _ATTRIBUTES[op_name(self.call)].split()
        options: dict[str, Any] = {name: getattr(self.call.attrs, name) for name in names}
        if "roi" in options:
            options["roi"] = [float(item) for item in options["roi"]]
        operator = attrgetter(op_name(self.call).removeprefix("relax."))(relax.op)
        return in_blocks(block, operator(*images, *self.call.args[1:], layout=f"NCHW{block}c", **options))


@dataclass(frozen=True)
class PixelSlice(OfTvm):
    """A slice of height and width."""

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        return in_blocks(block, relax.Call(self.call.op, [*images, *self.call.args[1:]], self.call.attrs))


@dataclass(frozen=True)
class Padding(OfTvm):
    """Rows and columns of a constant around an image."""

    @classmethod
    def of(cls, call: Call, _value_of: Callable[[Expr], Expr]) -> Padding | None:
        """Return what a padding of height and width alone is; None for any other."""
        widths = [int(item) for item in call.attrs.pad_width]
        is_around = len(widths) == 8 and not any(widths[:4]) and str(call.attrs.pad_mode) == "constant"
        return cls((call.args[0],), call) if is_around else None

    def fits(self, lanes: int) -> bool:
        # Lanes that are no channel are multiplied by zeros later, which makes no zero of infinity.
        return isfinite(self.call.attrs.pad_value) or static_shape(self.call)[1] % lanes == 0

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        widths = [*map(int, self.call.attrs.pad_width), 0, 0]
        return in_blocks(block, relax.op.nn.pad(*images, widths, "constant", float(self.call.attrs.pad_value)))


def _slice(call: Call, _value_of: Callable[[Expr], Expr]) -> ImageOperator | None:
    """Return what a slice of channels, or of height and width, is; None for one of another axis, or with gaps."""
    data, axes, begins, _, *strides = call.args
    shape = static_shape(data)
    if all(int(axis.value) in (2, 3) for axis in axes):
        return PixelSlice((data,), call)
    if not shape or len(axes) != 1 or int(axes[0].value) % len(shape) != 1:
        return None
    if any(int(item.value) != 1 for numbers in strides for item in numbers):
        return None
    first = int(begins[0].value)
    first = max(first + shape[1], 0) if first < 0 else first
    return Part((data,), first, static_shape(call)[1], is_slice=True)


@dataclass(frozen=True)
class Resize(OfTvm):
    """An image of another height and width.

    Attributes:
        factors: How often each pixel is repeated down and right; None if others are computed.
    """

    factors: tuple[int, int] | None

    @classmethod
    def of(cls, call: Call, _value_of: Callable[[Expr], Expr]) -> Resize | None:
        return cls((call.args[0],), call, _repeats(call)) if str(call.attrs.layout) == "NCHW" else None

    @property
    def has_kernel(self) -> bool:
        return self.factors is not None

    def in_chunks(self, chunks: Chunks) -> Expr:
        assert self.factors is not None
        batch, height, width, *channels = chunks.shape
        down, right = self.factors
        program = enlarge_program(chunks.shape, self.factors, chunks.element.dtype)
        return chunks.kernel("enlarge", program, (batch, height * down, width * right, *channels))


def _repeats(resize: Call) -> tuple[int, int] | None:
    """How often a resize repeats each pixel down and right; None if it computes others."""
    attrs = resize.attrs
    before = static_shape(resize.args[0])[2:]
    after = static_shape(resize)[2:]
    modes = (str(attrs.coordinate_transformation_mode), str(attrs.rounding_method))
    nearest = str(attrs.method) == "nearest_neighbor" and modes in _NEAREST
    if not nearest or len(before) != 2 or not all(before):
        return None
    high, wide = (large // small for large, small in zip(after, before, strict=True))
    whole = (before[0] * high, before[1] * wide) == after
    same = modes[0] == "asymmetric" or max(high, wide) <= 2
    return (high, wide) if whole and same else None


@dataclass(frozen=True)
class Pool(OfTvm):
    """The largest or the mean of the pixels in each window of an image.

    Attributes:
        kernel: The size of a window, over which there is a kernel; (0, 0) if there is none.
        window: The geometry, without dilation.
        largest: Whether it is a maximum; a mean has no padding.
    """

    kernel: tuple[int, int] = _NO_KERNEL
    window: Window = _WHOLE
    largest: bool = False

    @classmethod
    def of(cls, call: Call, _value_of: Callable[[Expr], Expr]) -> Pool | None:
        """Return what a pooling computes; None for one of another layout."""
        if str(call.attrs.layout) != "NCHW":
            return None
        images = (call.args[0],)
        if op_name(call) == "relax.nn.adaptive_avg_pool2d":
            to_one = static_shape(call)[2:] == (1, 1)
            return cls(images, call, _pixels(call.args[0]) if to_one else _NO_KERNEL)
        largest = op_name(call) == "relax.nn.max_pool2d"
        window = Window.of(call)
        inside = largest or not (any(window.padding) or call.attrs.ceil_mode)
        if not inside or set(window.dilation) != {1}:
            return cls(images, call)
        high, wide = (int(item) for item in call.attrs.pool_size)
        return cls(images, call, (high, wide), window, largest)

    @property
    def has_kernel(self) -> bool:
        return self.kernel != _NO_KERNEL

    def in_chunks(self, chunks: Chunks) -> Expr:
        name = "max_pool" if self.largest else "average"
        program = chunks.program or max_pool_program(chunks.element, chunks.shape, self.kernel, self.window)
        return chunks.kernel(name, program, (chunks.shape[0], *self.window.size, *chunks.shape[3:]))


def _pixels(image: Expr) -> tuple[int, int]:
    """The height and width of an image."""
    _, _, height, width = static_shape(image)
    return height, width


@dataclass(frozen=True)
class Reduction(Pool):
    """A mean, sum, maximum or minimum over exactly height and width. Of a mean there is a kernel."""

    @classmethod
    def of(cls, call: Call, _value_of: Callable[[Expr], Expr]) -> Reduction | None:
        """Return what a reduction over exactly height and width of an image is; None for any other."""
        axes = sorted(int(axis) % 4 for axis in call.attrs.axis or ())
        if len(static_shape(call.args[0])) != 4 or axes != [2, 3]:
            return None
        return cls((call.args[0],), call, _pixels(call.args[0]) if op_name(call) == "relax.mean" else _NO_KERNEL)

    def in_blocks(self, images: Sequence[Expr], block: int, emit: Emit) -> Forms | None:
        reduced = getattr(relax.op, op_name(self.call).removeprefix("relax."))(*images, [2, 3], True)
        if self.call.attrs.keepdims:
            return in_blocks(block, reduced)
        shape = static_shape(self.call)
        return None if shape[1] % block else {PLAIN: relax.op.reshape(emit(reduced), shape)}


_POOL = "pool_size strides padding dilation ceil_mode count_include_pad"
# What operators on height and width are called with, besides the layout.
_ATTRIBUTES = {
    "relax.nn.max_pool2d": _POOL,
    "relax.nn.avg_pool2d": _POOL,
    "relax.nn.adaptive_avg_pool2d": "output_size",
    "relax.image.resize2d": """roi method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude
        extrapolation_value""",
}
MOVES: Mapping[str, Callable[[Expr, Callable[[Expr], Expr]], ImageOperator | None]] = {
    PART: Part.of_split,
    "relax.concat": Join.of,
    "relax.image.resize2d": Resize.of,
    "relax.nn.adaptive_avg_pool2d": Pool.of,
    "relax.nn.avg_pool2d": Pool.of,
    "relax.nn.max_pool2d": Pool.of,
    "relax.nn.pad": Padding.of,
    "relax.strided_slice": _slice,
    **dict.fromkeys(("relax.max", "relax.mean", "relax.min", "relax.sum"), Reduction.of),
}
