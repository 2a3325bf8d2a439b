"""Targets, and programs made of tensor expressions."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import resolve_target, tvm_target


@pytest.fixture(scope="session")
def target():
    """Two cores with AVX2."""
    load_tvm("llvm")
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@pytest.fixture(scope="session")
def wide_target(target):
    """Two cores with AVX-512: vectors that are twice as wide, and twice as many."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})


@pytest.fixture(scope="session")
def as_program(target):
    """The program that computes the last of its arguments from the others."""
    import tvm
    from tvm import te

    return lambda *arguments: tvm.IRModule({"main": te.create_prim_func(arguments).with_attr("global_symbol", "main")})


@pytest.fixture(scope="session")
def matmul_of(as_program):
    """The product of two square matrices of a size."""
    from tvm import te

    def make(size):
        a, b = (te.placeholder((size, size), name=name) for name in "ab")
        k = te.reduce_axis((0, size), "k")
        return as_program(a, b, te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c"))

    return make


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
