"""What operators do with the channels and pixels of images, however these are packed and whatever their elements are.

Each kind of operator is recognised here once. Images in chunks of channels get its kernel here, too; those in blocks of
channels are computed by TVM's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from autotune.tvm_backend.types import Call, Expr, PrimFunc

POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d", "relax.mean")
_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round"))


@dataclass(frozen=True)
class Join:
    """Channels of images (N, C, H, W) that are put together."""

    images: tuple[Expr, ...]

    @classmethod
    def of(cls, call: Call, value_of: Callable[[Expr], Expr]) -> Join | None:
        """Return what a concatenation of channels puts together; None for one along another axis.

        Args:
            call: The concatenation.
            value_of: Returns what a variable is bound to, or the expression itself.
        """
        joined = value_of(call.args[0])
        along_channels = len(static_shape(call)) == 4 and int(call.attrs.axis or 0) % 4 == 1
        return cls(tuple(joined.fields)) if along_channels and isinstance(joined, relax.Tuple) else None

    @property
    def is_whole(self) -> bool:
        """Whether no chunk would have channels of two images."""
        return all(static_shape(item)[1] % LANES == 0 for item in self.images)

    def call(
        self,
        graph: Rewriter,
        element: PackedElement,
        images: Sequence[Expr],
        program: PrimFunc | None = None,
        constants: Sequence[Expr] = (),
    ) -> Expr:
        """Compute it on images in chunks.

        Args:
            graph: What the kernel is added to.
            element: The type of their elements.
            images: Those that are put together.
            program: What does so; None to copy elements.
            constants: What the program reads beside the images.
        """
        shapes = [static_shape(item) for item in images]
        made = program or concat_program(shapes, element.dtype)
        result = (*shapes[0][:3], sum(shape[3] for shape in shapes), LANES)
        return graph.kernel(made, f"{element.name}_concat", [*images, *constants], result, element.dtype)


@dataclass(frozen=True)
class Part:
    """Some channels of an image (N, C, H, W): so many from one on."""

    image: Expr
    first: int
    count: int

    @classmethod
    def of_split(cls, part: Expr, split: Expr) -> Part | None:
        """Return what a part of split channels is; None for a part of something else.

        Args:
            part: The TupleGetItem.
            split: What its tuple is bound to.
        """
        if op_name(split) != "relax.split" or len(static_shape(part)) != 4 or int(split.attrs.axis) % 4 != 1:
            return None
        sizes = [int(item.shape.values[1]) for item in part.tuple_value.ty.fields]
        return cls(split.args[0], sum(sizes[: part.index]), sizes[part.index])

    @classmethod
    def of_slice(cls, call: Call) -> Part | None:
        """Return what a slice of channels is; None for one of another axis, or with gaps."""
        data, axes, begins, _, *strides = call.args
        shape = static_shape(data)
        if len(axes) != 1 or int(axes[0].value) % len(shape) != 1:
            return None
        if any(int(item.value) != 1 for numbers in strides for item in numbers):
            return None
        first = int(begins[0].value)
        return cls(data, max(first + shape[1], 0) if first < 0 else first, static_shape(call)[1])

    @property
    def is_whole(self) -> bool:
        """Whether it consists of whole chunks."""
        return self.first % LANES == self.count % LANES == 0

    def call(self, graph: Rewriter, element: PackedElement, image: Expr) -> Expr:
        """Compute it on an image in chunks."""
        shape = static_shape(image)
        chunks = self.count // LANES
        program = slice_program(shape, self.first // LANES, chunks, element.dtype)
        return graph.kernel(program, f"{element.name}_slice", [image], (*shape[:3], chunks, LANES), element.dtype)


@dataclass(frozen=True)
class Enlargement:
    """An image (N, C, H, W) each of whose pixels is repeated so many times down and right."""

    image: Expr
    factors: tuple[int, int]

    @classmethod
    def of(cls, resize: Call) -> Enlargement | None:
        """Return which pixels a resize repeats; None if it computes others."""
        attrs = resize.attrs
        before = static_shape(resize.args[0])[2:]
        after = static_shape(resize)[2:]
        modes = (str(attrs.coordinate_transformation_mode), str(attrs.rounding_method))
        nearest = str(attrs.method) == "nearest_neighbor" and modes in _NEAREST
        if not nearest or str(attrs.layout) != "NCHW" or len(before) != 2:
            return None
        high, wide = (large // small for large, small in zip(after, before, strict=True))
        whole = (before[0] * high, before[1] * wide) == after
        same = modes[0] == "asymmetric" or max(high, wide) <= 2
        return cls(resize.args[0], (high, wide)) if whole and same else None

    def call(self, graph: Rewriter, element: PackedElement, image: Expr) -> Expr:
        """Compute it on an image in chunks."""
        batch, height, width, *channels = static_shape(image)
        down, right = self.factors
        program = enlarge_program(static_shape(image), self.factors, element.dtype)
        result = (batch, height * down, width * right, *channels)
        return graph.kernel(program, f"{element.name}_enlarge", [image], result, element.dtype)


@dataclass(frozen=True)
class Pool:
    """The largest or the mean of the pixels in each window of an image (N, C, H, W).

    Attributes:
        image: The image.
        kernel: The size of a window.
        window: The geometry, without dilation.
        largest: Whether it is a maximum; a mean has no padding.
    """

    image: Expr
    kernel: tuple[int, int]
    window: Window
    largest: bool = False

    @classmethod
    def of(cls, call: Call) -> Pool | None:
        """Return what a pooling, or a mean over height and width, computes; None for one that has no kernel here."""
        name = op_name(call)
        shape = static_shape(call.args[0])
        if name == "relax.mean":
            return cls(call.args[0], (shape[2], shape[3]), Window((1, 1))) if is_over_pixels(call) else None
        if str(call.attrs.layout) != "NCHW":
            return None
        if name == "relax.nn.adaptive_avg_pool2d":
            to_one = static_shape(call)[2:] == (1, 1)
            return cls(call.args[0], (shape[2], shape[3]), Window((1, 1))) if to_one else None
        largest = name == "relax.nn.max_pool2d"
        window = Window.of(call)
        high, wide = (int(item) for item in call.attrs.pool_size)
        inside = largest or not (any(window.padding) or call.attrs.ceil_mode)
        return cls(call.args[0], (high, wide), window, largest) if inside and set(window.dilation) == {1} else None

    def call(
        self,
        graph: Rewriter,
        element: PackedElement,
        image: Expr,
        program: PrimFunc | None = None,
        constants: Sequence[Expr] = (),
    ) -> Expr:
        """Compute it on an image in chunks.

        Args:
            graph: What the kernel is added to.
            element: The type of its elements.
            image: The image.
            program: What computes a mean; a maximum needs none.
            constants: What the program reads beside the image.
        """
        shape = static_shape(image)
        made = max_pool_program(element, shape, self.kernel, self.window) if self.largest else program
        name = f"{element.name}_max_pool" if self.largest else f"{element.name}_average"
        result = (shape[0], *self.window.size, *shape[3:])
        return graph.kernel(made, name, [image, *constants], result, element.dtype)


def is_over_pixels(reduction: Call) -> bool:
    """Return whether a mean, sum, maximum or minimum is over exactly height and width of an image (N, C, H, W)."""
    axes = sorted(int(axis) % 4 for axis in reduction.attrs.axis or ())
    return len(static_shape(reduction.args[0])) == 4 and axes == [2, 3]
