"""Put channels first: TensorFlow Lite has them last, and all that follows the import is written for NCHW.

A convolution computes on a transposed input. The operators after it take what it made as it is, as far as they can, so
that a network is transposed where it begins and where it ends.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import constant_of, is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.graph.permutations import TO_FIRST, TO_LAST
from autotune.tvm_backend.graph.reshape import ELEMENTWISE
from autotune.tvm_backend.graph.rewrite import Rewriter, rewrite_and_clean
from autotune.tvm_backend.types import Call, Expr, IRModule, Var

_AXES = (0, 2, 3, 1)  # where each axis of a tensor with channels last is with channels first


def put_channels_first(mod: IRModule) -> IRModule:
    """Rewrite `main` so that convolutions, and the operators between them, have their channels first.

    Args:
        mod: A module as it was imported. Its inputs and outputs stay as they are.
    """
    return rewrite_and_clean(mod, _ChannelsFirst)


class _ChannelsFirst(Rewriter):
    """Keeps for each old variable the new one as it was, and the one with its channels first. One is made of the other.

    Attributes:
        values: The value of each old variable so far.
    """

    local = ("_last", "_first")

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.values: dict[Var, Expr] = {}
        self._last: dict[Var, Expr] = {param: param for param in self.function.params}
        self._first: dict[Var, Expr] = {}

    def visit(self, var: Var, value: Expr) -> None:
        self.values[var] = value
        handler = _HANDLERS.get(op_name(value))
        made = handler(self, value) if handler else None
        if made is None:
            self._last[var] = self.builder.emit(self.rebuild(value), var.name)
            return
        emitted = self.builder.emit(made, var.name)
        four = len(static_shape(emitted)) == 4  # a reduction may leave less, in which the channels stay where they are
        (self._first if four else self._last)[var] = emitted

    def plain(self, var: Var) -> Expr:
        if var not in self._last and var in self._first:
            self._last[var] = self._moved(self._first[var], TO_LAST)
        return self._last.get(var, var)

    def bind(self, var: Var, expr: Expr) -> None:
        self._last[var] = expr
        self._first.pop(var, None)

    def first(self, expr: Expr) -> Expr:
        """Return a movable operand with its channels first."""
        if is_tensor_constant(expr):
            return _moved_constant(expr)
        if expr not in self._first:
            bytes_ = self._dequantised(expr)
            self._first[expr] = self._moved(self.plain(expr), TO_FIRST) if bytes_ is None else bytes_
        return self._first[expr]

    def _dequantised(self, expr: Expr) -> Expr | None:
        """What is dequantised with its channels first; None for any other expression. Bytes are moved, not floats."""
        value: Expr = self.values.get(expr)
        if op_name(value) != "relax.dequantize" or not isinstance(value.args[0], relax.Var):
            return None
        return self.builder.emit(relax.Call(value.op, [self.first(value.args[0]), *value.args[1:]], value.attrs))

    def is_first(self, expr: Expr) -> bool:
        """Return whether an operand is there with its channels first."""
        return isinstance(expr, relax.Var) and expr in self._first

    def _moved(self, expr: Expr, axes: tuple[int, ...]) -> Expr:
        shape = tuple(static_shape(expr)[axis] for axis in axes)
        channels = shape[1] if axes == TO_FIRST else shape[3]
        if channels == 1 or channels == np.prod(shape[1:]):
            return self.builder.emit(relax.op.reshape(expr, shape))
        return self.builder.emit(relax.op.permute_dims(expr, axes))


def _movable(expr: Expr) -> bool:
    shape = static_shape(expr)
    return len(shape) <= 4 if is_tensor_constant(expr) else isinstance(expr, relax.Var) and len(shape) == 4


def _moved_constant(expr: Expr) -> Expr:
    value = values_of(expr)
    if value.size == 1:
        return relax.const(value.reshape(()), str(expr.ty.dtype))
    moved = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(TO_FIRST)
    return relax.const(np.ascontiguousarray(moved), str(expr.ty.dtype))


_Handler = Callable[[_ChannelsFirst, Call], Expr | None]


def _conv2d(graph: _ChannelsFirst, call: Call) -> Expr | None:
    data, weight = call.args
    kernel = _kernel(graph, weight, str(call.attrs.kernel_layout))
    if str(call.attrs.data_layout) != "NHWC" or kernel is None or not _movable(data):
        return None
    data, padding = _padded(graph, data, [int(size) for size in call.attrs.padding])
    return relax.op.nn.conv2d(
        graph.first(data),
        kernel,
        strides=call.attrs.strides,
        padding=padding,
        dilation=call.attrs.dilation,
        groups=int(call.attrs.groups),
    )


def _kernel(graph: _ChannelsFirst, weight: Expr, layout: str) -> Expr | None:
    """Return constant weights with the channels of the output first, also dequantised ones; None for any other."""
    axes = [layout.index(axis) for axis in "OIHW"]
    if is_tensor_constant(weight):
        return constant_of(values_of(weight).transpose(axes), str(weight.ty.dtype))
    value: Expr = graph.values.get(weight)
    if op_name(value) == "relax.reshape":
        value = graph.values.get(value.args[0])
    if op_name(value) != "relax.dequantize" or not all(map(is_tensor_constant, value.args)):
        return None
    integers, scale, zero = value.args
    moved = values_of(integers).reshape(static_shape(weight)).transpose(axes)
    if values_of(scale).size not in (1, len(moved)):
        return None
    constant = relax.const(np.ascontiguousarray(moved), str(integers.ty.dtype))
    return graph.builder.emit(relax.op.dequantize(constant, scale, zero, axis=0))


def _padded(graph: _ChannelsFirst, data: Expr, padding: list[int]) -> tuple[Expr, list[int]]:
    """Return the input and the padding of a convolution, with the zeros that an operator before it puts around."""
    call: Call = graph.values.get(data)
    if op_name(call) != "relax.nn.pad" or str(call.attrs.pad_mode) != "constant" or float(call.attrs.pad_value):
        return data, padding
    top, bottom, left, right = (int(size) for size in call.attrs.pad_width[2:6])
    inside = any(int(size) for size in (*call.attrs.pad_width[:2], *call.attrs.pad_width[6:]))
    if inside or min(top, bottom, left, right) < 0 or not _movable(call.args[0]):
        return data, padding
    return call.args[0], [a + b for a, b in zip(padding, (top, left, bottom, right), strict=True)]


def _conv2d_transpose(graph: _ChannelsFirst, call: Call) -> Expr | None:
    names = "strides padding output_padding dilation groups kernel_layout"
    return _windowed(relax.op.nn.conv2d_transpose, names, "data_layout")(graph, call)


def _windowed(make: Callable[..., Call], names: str, layout: str = "layout") -> _Handler:
    """Return a handler of an operator on height and width.

    Args:
        names: The attributes to copy, separated by spaces.
        layout: The attribute with the layout of the data.
    """

    def handler(graph: _ChannelsFirst, call: Call) -> Expr | None:
        data, *others = call.args
        if str(getattr(call.attrs, layout)) != "NHWC" or not _movable(data):
            return None
        options = {name: getattr(call.attrs, name) for name in names.split()}
        if "roi" in options:
            options["roi"] = [float(item) for item in options["roi"]]
        return make(graph.first(data), *others, **{layout: "NCHW"}, **options)

    return handler


def _elementwise(graph: _ChannelsFirst, call: Call) -> Expr | None:
    tensors = [item for item in call.args if isinstance(item.ty, relax.TensorType)]
    if len(static_shape(call)) != 4 or not any(map(graph.is_first, tensors)) or not all(map(_movable, tensors)):
        return None
    return relax.Call(call.op, [*map(graph.first, tensors), *call.args[len(tensors) :]], call.attrs, call.ty_args)


def _reduce(graph: _ChannelsFirst, call: Call) -> Expr | None:
    (data,) = call.args
    axes = call.attrs.axis
    whole = axes is not None and sorted(int(axis) % 4 for axis in axes) in ([1, 2], [1, 2, 3])
    if not graph.is_first(data) or not (whole or (axes is not None and call.attrs.keepdims)):
        return None
    make = getattr(relax.op, op_name(call).removeprefix("relax."))
    return make(graph.first(data), [_AXES[int(axis) % 4] for axis in axes], bool(call.attrs.keepdims))


def _concat(graph: _ChannelsFirst, call: Call) -> Expr | None:
    fields = list(call.args[0].fields)
    if len(static_shape(call)) != 4 or not any(map(graph.is_first, fields)) or not all(map(_movable, fields)):
        return None
    return relax.op.concat([graph.first(part) for part in fields], axis=_AXES[int(call.attrs.axis) % 4])


def _pad(graph: _ChannelsFirst, call: Call) -> Expr | None:
    if not graph.is_first(call.args[0]):
        return None
    sizes = [int(size) for size in call.attrs.pad_width]
    moved = [sizes[2 * axis + end] for axis in TO_FIRST for end in (0, 1)]
    return relax.op.nn.pad(graph.first(call.args[0]), moved, str(call.attrs.pad_mode), float(call.attrs.pad_value))


_POOL = "pool_size strides padding dilation ceil_mode count_include_pad"
_RESIZE = """roi method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude extrapolation_value"""
_HANDLERS: dict[str, _Handler] = {
    "relax.nn.conv2d": _conv2d,
    "relax.nn.conv2d_transpose": _conv2d_transpose,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("relax.quantize", "relax.dequantize"), _elementwise),
    "relax.nn.max_pool2d": _windowed(relax.op.nn.max_pool2d, _POOL),
    "relax.nn.avg_pool2d": _windowed(relax.op.nn.avg_pool2d, _POOL),
    "relax.image.resize2d": _windowed(relax.op.image.resize2d, _RESIZE),
    **{f"relax.{name}": _reduce for name in ("max", "mean", "min", "sum")},
    "relax.concat": _concat,
    "relax.nn.pad": _pad,
}
