"""The kinds of tasks whose schedules are checked, each small enough to run in a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

TENSOR_CORES = {"fp16": "float16", "bf16": "bfloat16", "tf32": "float32", "int8": "int8"}
Make = Callable[[], list[Any]]


def tasks() -> dict[str, Make]:
    """The tasks by their names, as the arguments of `te.create_prim_func`. Those named `long` have 64-bit indices."""
    return {
        "product_fp32": partial(product, "float32"),
        "few_rows_fp32": partial(product, "float32", 16, 512),  # some schedules split the sum among blocks
        "convolution": partial(convolution, "float32", layouts=("NCHW", "OIHW")),
        **{
            f"{kind}_{name}": partial(make, dtype)
            for name, dtype in TENSOR_CORES.items()
            for kind, make in _on_tensor_cores(dtype).items()
        },
        **{f"long_{kind}_fp16": partial(make, "float16") for kind, make in _on_tensor_cores("fp16").items()},
        **{name: partial(plain_attention, *kind) for name, kind in attentions().items()},
        "depthwise": depthwise,
        "softmax": softmax,
        "layer_norm": layer_norm,
        "sum": total,
        "elementwise": elementwise,
    }


def _on_tensor_cores(dtype: str) -> dict[str, Callable[[str], list[Any]]]:
    kinds: dict[str, Callable[[str], list[Any]]] = {
        "product": product,
        "few_rows": partial(product, rows=16, terms=512),
        "odd": partial(product, rows=70, terms=51, columns=45),  # nowhere do elements lie together
        "wide": partial(product, rows=160, terms=96, columns=136),
        "deep": partial(product, rows=40, terms=600, columns=40),  # more tiles of terms than stages
        "convolution": convolution,
        "first": partial(convolution, channels=3, window=7, stride=2),  # of three colours
        "strides": partial(convolution, channels=24, window=1, stride=2),
    }
    return kinds if dtype == "int8" else {**kinds, "attention": attention, "gated": gated}


# By their names: batch, heads, queries, keys, the size of a head, and the shape of what is added to the scores.
ATTENTIONS: dict[str, tuple[int, int, int, int, int, tuple[int, ...]]] = {
    "heads": (2, 2, 40, 150, 40, ()),
    "masked": (1, 2, 70, 200, 64, (1, 1, 1, 200)),
    "wide_heads": (1, 1, 33, 65, 128, (1, 1, 33, 65)),
}


def attentions() -> dict[str, Any]:
    """Those which are one kernel and have no other schedule, by their names: shapes and element types."""
    from autotune.tvm_backend.cuda.attention_kernel import AttentionShape

    return {
        f"{name}_{kind}": (AttentionShape(*sizes, scale=sizes[4] ** -0.5, added=added), dtype)
        for name, (*sizes, added) in ATTENTIONS.items()
        for kind, dtype in (("fp16", "float16"), ("bf16", "bfloat16"))
    }


def plain_attention(shape: Any, dtype: str) -> list[Any]:
    """What such a kernel computes, as the arguments of `te.create_prim_func`."""
    from tvm import te, topi

    width = shape.heads * shape.size
    rows = {"q": shape.queries, "k": shape.keys, "v": shape.keys}
    q, k, v = tensors = [_tensor(name, shape.batch, count, width, dtype=dtype) for name, count in rows.items()]
    at = lambda tensor, n, row, h, e: tensor[n, row, h * shape.size + e].astype("float32")  # noqa: E731
    added = [_tensor("added", *shape.added)] if shape.added else []
    d, j = te.reduce_axis((0, shape.size), "d"), te.reduce_axis((0, shape.keys), "j")
    of_scores = (shape.batch, shape.heads, shape.queries, shape.keys)
    product = lambda n, h, i, k_: te.sum(at(q, n, i, h, d) * at(k, n, k_, h, d), d)  # noqa: E731
    scores = topi.multiply(te.compute(of_scores, product, "scores"), shape.scale)
    weights = topi.nn.softmax(topi.add(scores, added[0]) if added else scores)
    element = lambda n, i, h, e: te.sum(weights[n, h, i, j] * at(v, n, j, h, e), j)  # noqa: E731
    mixed = te.compute((shape.batch, shape.queries, shape.heads, shape.size), element, "mixed")
    return [*tensors, *added, topi.cast(mixed, dtype)]


def _tensor(name: str, *shape: int, dtype: str = "float32") -> Any:
    from tvm import te

    return te.placeholder(shape, dtype, name=name)


def _sums_of(dtype: str) -> str:
    return "int32" if dtype == "int8" else "float32"


def product(dtype: str, rows: int = 64, terms: int = 64, columns: int = 64) -> list[Any]:
    """A product of matrices of which the positive part is taken."""
    from tvm import te, topi

    a = _tensor("a", rows, terms, dtype=dtype)
    b = _tensor("b", terms, columns, dtype=dtype)
    k = te.reduce_axis((0, terms), name="k")
    sums = _sums_of(dtype)
    element = lambda i, j: te.sum(a[i, k].astype(sums) * b[k, j].astype(sums), k)  # noqa: E731
    return [a, b, topi.nn.relu(te.compute((rows, columns), element, "c"))]


def attention(dtype: str) -> list[Any]:
    """The products of two heads, with queries and keys as they lie after a projection."""
    from tvm import te

    q, k = (_tensor(name, 2, 33, 2, 32, dtype=dtype) for name in "qk")
    d = te.reduce_axis((0, 32), name="d")
    element = lambda n, h, i, j: te.sum(q[n, i, h, d].astype("float32") * k[n, j, h, d].astype("float32"), d)  # noqa: E731
    scores = te.compute((2, 2, 33, 33), element, "scores")
    return [q, k, te.compute((2, 2, 33, 33), lambda *i: (scores[i] * 0.125).astype(dtype), "scaled")]


def gated(dtype: str) -> list[Any]:
    """A product that what follows reads twice, with a vector."""
    from tvm import te, topi

    a = _tensor("a", 48, 40, dtype=dtype)
    b = _tensor("b", 40, 72, dtype=dtype)
    bias = _tensor("bias", 72, dtype=dtype)
    k = te.reduce_axis((0, 40), name="k")
    element = lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k)  # noqa: E731
    added = topi.add(topi.cast(te.compute((48, 72), element, "c"), dtype), bias)
    return [a, b, bias, topi.multiply(added, topi.sigmoid(added))]


def convolution(
    dtype: str,
    channels: int = 16,
    window: int = 3,
    stride: int = 1,
    layouts: tuple[str, str] = ("NHWC", "OHWI"),
) -> list[Any]:
    """A convolution of images of 14 by 14, of which the positive part is taken."""
    from tvm import topi

    image, weight = layouts
    x = _tensor("x", *({"N": 2, "C": channels}.get(axis, 14) for axis in image), dtype=dtype)
    w = _tensor("w", *({"O": 32, "I": channels}.get(axis, window) for axis in weight), dtype=dtype)
    options = {"data_layout": image, "kernel_layout": weight, "out_dtype": _sums_of(dtype)}
    return [x, w, topi.nn.relu(topi.nn.conv2d(x, w, stride, window // 2, 1, **options))]


def depthwise() -> list[Any]:
    """A convolution of each channel by itself."""
    from tvm import topi

    x = _tensor("x", 1, 32, 14, 14)
    w = _tensor("w", 32, 1, 3, 3)
    return [x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)]


def softmax() -> list[Any]:
    """A softmax of rows."""
    from tvm import topi

    x = _tensor("x", 16, 128)
    return [x, topi.nn.softmax(x)]


def layer_norm() -> list[Any]:
    """A normalisation of rows."""
    from tvm import topi

    x = _tensor("x", 16, 128)
    scale = _tensor("scale", 128)
    bias = _tensor("bias", 128)
    return [x, scale, bias, topi.nn.layer_norm(x, scale, bias, [1], 1e-5)]


def total() -> list[Any]:
    """Sums of pixels."""
    from tvm import topi

    x = _tensor("x", 1, 64, 12, 12)
    return [x, topi.sum(x, axis=[2, 3])]


def elementwise() -> list[Any]:
    """A function of each element."""
    from tvm import te, tirx

    x = _tensor("x", 4096, dtype="float16")
    return [x, te.compute((4096,), lambda i: tirx.tanh(x[i]) * x[i] + tirx.const(1, "float16"), "y")]
