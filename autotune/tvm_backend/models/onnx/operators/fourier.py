"""Fourier transforms as products and convolutions with cosines and sines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes, attributes_of
from autotune.tvm_backend.types import NodeProto

Matrix = npt.NDArray[np.float64]


def dft(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: x with a last dimension of 1 (real) or 2 (complex), the length or none and, since opset 20, the axis."""
    x, length, axis_input = [*node.input, "", ""][:3]
    attributes = attributes_of(node)
    shape = nodes.shape(x)
    inverse = bool(attributes.get("inverse", 0))
    onesided = bool(attributes.get("onesided", 0))
    axis = int(nodes.number(axis_input) if axis_input else attributes.get("axis", 1 if nodes.opset < 20 else -2))
    axis %= len(shape)
    size = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    count = int(nodes.number(length)) if length else size
    taken = min(shape[axis], count // 2 + 1 if inverse and onesided else count)
    components = _parts(nodes, x, shape, axis, taken)
    if inverse and onesided:
        return [_joined(nodes, [_real(nodes, x, components, taken, count)], len(shape), axis)]
    cosines, sines = _matrices(taken, count, count // 2 + 1 if onesided else count, inverse)
    return [_joined(nodes, _complex(nodes, x, components, cosines, sines), len(shape), axis)]


def stft(node: NodeProto, nodes: Nodes) -> list[str]:
    """Inputs: a real signal, the step between frames, and a window or the length of a frame or both.

    A convolution computes all frames, with the window in its weights.
    """
    signal, step_input, window, length_input = [*node.input, "", ""][:4]
    shape = nodes.shape(signal)
    if len(shape) == 3 and shape[2] != 1:
        raise ValueError("the signal is complex; real ones are supported")
    length = int(nodes.number(length_input)) if length_input else nodes.shape(window)[0]
    onesided = bool(attributes_of(node).get("onesided", 1))
    bins = length // 2 + 1 if onesided else length
    cosines, sines = _matrices(length, length, bins, inverse=False)
    weights = nodes.constant_like(np.concatenate([cosines, sines], axis=1).T[:, None], signal)
    if window:
        weights = nodes.op("Mul", weights, nodes.reshape(window, (1, 1, length)))
    rows = nodes.reshape(signal, (shape[0], 1, shape[1]))
    strides = [int(nodes.number(step_input))]
    spectra = nodes.op("Conv", rows, weights, strides=strides, kernel_shape=[length])
    frames = (shape[1] - length) // strides[0] + 1
    return [nodes.op("Transpose", nodes.reshape(spectra, (shape[0], 2, bins, frames)), perm=[0, 3, 2, 1])]


def _parts(nodes: Nodes, x: str, shape: tuple[int, ...], axis: int, taken: int) -> list[str]:
    """The real and, if there is one, the imaginary part, with the axis last."""
    cut = nodes.slice(x, axis, 0, taken) if taken < shape[axis] else x
    last = len(shape) - 1
    sizes = [taken if index == axis else size for index, size in enumerate(shape)]
    order = _order(last, axis)
    components = []
    for index in range(shape[last]):
        part = nodes.slice(cut, last, index, index + 1) if shape[last] > 1 else cut
        components.append(nodes.op("Transpose", nodes.reshape(part, sizes[:last]), perm=order))
    return components


def _complex(nodes: Nodes, x: str, components: list[str], cosines: Matrix, sines: Matrix) -> list[str]:
    cos, sin = (nodes.constant_like(matrix, x) for matrix in (cosines, sines))
    if len(components) == 1:
        return [nodes.op("MatMul", components[0], cos), nodes.op("MatMul", components[0], sin)]
    real, imaginary = components
    return [
        nodes.op("Sub", nodes.op("MatMul", real, cos), nodes.op("MatMul", imaginary, sin)),
        nodes.op("Add", nodes.op("MatMul", real, sin), nodes.op("MatMul", imaginary, cos)),
    ]


def _real(nodes: Nodes, x: str, components: list[str], taken: int, count: int) -> str:
    """The inverse of the first half of a spectrum, whose other half mirrors it."""
    mirrored = np.full((taken, 1), 2.0)
    mirrored[0] = 1
    if count % 2 == 0 and taken == count // 2 + 1:
        mirrored[-1] = 1
    cosines, sines = _matrices(taken, count, count, inverse=True)
    real = nodes.op("MatMul", components[0], nodes.constant_like(cosines * mirrored, x))
    if len(components) == 1:
        return real
    return nodes.op("Sub", real, nodes.op("MatMul", components[1], nodes.constant_like(sines * mirrored, x)))


def _matrices(taken: int, count: int, bins: int, inverse: bool) -> tuple[Matrix, Matrix]:
    """The cosines and sines that rows of `taken` values are multiplied by, for a transform of length `count`."""
    turns = np.outer(np.arange(taken), np.arange(bins)) % count * (2 * np.pi / count)
    return (np.cos(turns) / count, np.sin(turns) / count) if inverse else (np.cos(turns), -np.sin(turns))


def _joined(nodes: Nodes, components: list[str], rank: int, axis: int) -> str:
    """Parts with the axis last as one value, with the axis in its place and the parts along a last dimension."""
    order = _order(rank - 1, axis)
    back = [order.index(index) for index in range(rank - 1)]
    last = nodes.constant([rank - 1], np.int64)
    placed = [nodes.op("Unsqueeze", nodes.op("Transpose", part, perm=back), last) for part in components]
    return nodes.concat(placed, rank - 1)


def _order(rank: int, axis: int) -> list[int]:
    return [index for index in range(rank) if index != axis] + [axis]
