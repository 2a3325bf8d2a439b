"""A GPU to search for, and a product to be computed on it."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import resolve_target, tvm_target


@pytest.fixture(scope="module")
def gpu():
    """An H100."""
    load_tvm("cuda")
    return tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)


@pytest.fixture(scope="module")
def product_of(as_program):
    """A product of matrices, of which the positive part is taken."""
    from tvm import te, topi

    def make(rows, columns, terms, dtype="float32"):
        a, b = (
            te.placeholder(shape, dtype, name=name) for name, shape in (("a", (rows, terms)), ("b", (terms, columns)))
        )
        k = te.reduce_axis((0, terms), "k")
        element = lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k)  # noqa: E731
        return as_program(a, b, topi.nn.relu(te.compute((rows, columns), element, name="c")))

    return make
