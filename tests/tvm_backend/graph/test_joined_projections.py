"""Projections of one tensor to heads are one product, and compute what each of them did."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of, op_name
from autotune.tvm_backend.graph.joined_projections import join_projections

ROWS, WIDTH = 6, 16
DATA = np.random.default_rng(0).normal(size=(2, ROWS, WIDTH)).astype("float32")


def constant(seed, *shape):
    return relax.const(np.random.default_rng(seed).normal(size=shape).astype("float32"))


class Net:
    """A module of some inputs, and what makes projections of them."""

    def __init__(self, count=1):
        self.builder = relax.BlockBuilder()
        self.inputs = [relax.Var(f"x{index}", relax.TensorType(DATA.shape, "float32")) for index in range(count)]
        self.seed = 0

    def emit(self, expr):
        return self.builder.emit(expr)

    def product(self, data, columns):
        self.seed += 1
        return self.emit(relax.op.matmul(data, constant(self.seed, WIDTH, columns)))

    def heads(self, data, size=4, columns=WIDTH, bias=True):
        result = self.product(data, columns)
        if bias:
            result = self.emit(relax.op.add(constant(self.seed + 50, columns), result))
        return self.emit(relax.op.reshape(result, (2, ROWS, columns // size, size)))

    def module(self, make):
        with self.builder.function("main", self.inputs):
            with self.builder.dataflow():
                outputs = [self.builder.emit_output(item) for item in make(self, *self.inputs)]
            self.builder.emit_func_output(relax.Tuple(outputs))
        return self.builder.get()


def run(module, count):
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    results = machine["main"](*(tvm.runtime.tensor(DATA * (index + 1)) for index in range(count)))
    return [item.numpy() for item in results]


def read_again(net, x):
    product = net.product(x, WIDTH)
    return [net.heads(x), net.emit(relax.op.reshape(product, (2, ROWS, 4, 4))), product]


@pytest.mark.parametrize(
    ("make", "inputs", "products"),
    [
        pytest.param(lambda net, x: [net.heads(x) for _ in range(3)], 1, 1, id="three of one tensor"),
        pytest.param(lambda net, x: [net.heads(x, bias=False) for _ in range(2)], 1, 1, id="without a bias"),
        pytest.param(lambda net, x: [net.heads(x), net.heads(x, columns=8)], 1, 1, id="of other widths"),
        pytest.param(lambda net, x, y: [net.heads(x), net.heads(y), net.heads(y)], 2, 2, id="two of another tensor"),
        pytest.param(lambda net, x: [net.heads(x), net.heads(x, bias=False)], 1, 2, id="only one has a bias"),
        pytest.param(lambda net, x: [net.heads(x), net.product(x, WIDTH)], 1, 2, id="one that has no heads"),
        pytest.param(read_again, 1, 2, id="one that is read again"),
    ],
)
def test_projections_of_one_tensor_are_one_product(make, inputs, products):
    module = Net(inputs).module(make)
    joined = join_projections(module)
    names = [op_name(item.value) for item in bindings_of(joined["main"])]
    assert names.count("relax.matmul") == products
    for result, wanted in zip(run(joined, inputs), run(module, inputs), strict=True):
        assert np.allclose(result, wanted, rtol=1e-5, atol=1e-5)
