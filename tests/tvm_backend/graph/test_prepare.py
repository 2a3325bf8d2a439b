"""A job of an older version keeps the passes that its tasks come from."""

from __future__ import annotations

import pytest
from tvm import relax

from autotune.tvm_backend.graph.prepare import prepare
from autotune.tvm_backend.search.tasks import extract_tasks


@pytest.fixture
def product(const):
    """A product with a constant matrix, whose result goes through a softmax."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit(relax.op.matmul(x, const(32, 48)))
            out = builder.emit_output(relax.op.nn.softmax(found, -1))
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


def names(module, target, **options):
    return [task.spec.name for task in extract_tasks(prepare(module, target, **options), target)]


def test_an_older_revision_leaves_later_passes_out(product, target):
    now, before = names(product, target), names(product, target, revision=1)
    assert not any("softmax" in name for name in now)
    assert any("softmax" in name for name in before)


@pytest.mark.parametrize("revision", (7, 8))
def test_pixels_that_nothing_reads_are_computed_by_older_revisions_only(strided, target, revision):
    tasks = extract_tasks(prepare(strided, target, revision=revision), target)
    results = [task.spec.shape.split()[-1] for task in tasks if "conv2d" in task.spec.name]
    assert [("x8x8x" in shape) for shape in results].count(True) == (1 if revision < 8 else 2)
