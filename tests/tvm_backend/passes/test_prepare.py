"""The passes that make tensor programs of a model, together."""

from __future__ import annotations

import pytest
from tvm import relax

from autotune.tvm_backend.passes.prepare import prepare
from autotune.tvm_backend.search.tasks import extract_tasks


@pytest.fixture
def product(const):
    """A product with a constant matrix, whose result goes through a softmax."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit(relax.op.matmul(x, const(32, 48)))
            out = builder.emit_output(relax.op.nn.softmax(result, -1))
        builder.emit_func_output(out)
    return builder.get()


@pytest.fixture
def strided(const):
    """Two convolutions of an image of 16x16, of which the second reads a quarter of the pixels."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 32, 16, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            image = builder.emit(relax.op.nn.conv2d(x, const(32, 32, 1, 1)))
            out = builder.emit_output(relax.op.nn.conv2d(image, const(32, 32, 1, 1), strides=2))
        builder.emit_func_output(out)
    return builder.get()


def test_a_product_reads_packed_weights_and_softmax_is_written_out(product, target):
    names = [task.spec.name for task in extract_tasks(prepare(product, target), target)]
    assert any("packed_matmul" in name for name in names)
    assert not any("softmax" in name for name in names)


def test_pixels_that_nothing_reads_are_not_computed(strided, target):
    tasks = extract_tasks(prepare(strided, target), target)
    results = [task.spec.shape.split()[-1] for task in tasks if "conv2d" in task.spec.name]
    assert len(results) == 2
    assert all("x8x8x" in shape for shape in results)
