"""The passes that make tensor programs of a model, together."""

from __future__ import annotations

from tvm import relax

from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.search.tasks import extract_tasks

from .relax_functions import constant, function


def test_a_product_reads_packed_weights_and_softmax_is_written_out(target):
    def build(emit, x):
        return relax.op.nn.softmax(emit(relax.op.matmul(x, constant(32, 48))), -1)

    names = [task.spec.name for task in extract_tasks(prepare(function(build, (4, 32)), target), target)]
    assert any("packed_matmul" in name for name in names)
    assert not any("softmax" in name for name in names)


def test_pixels_that_nothing_reads_are_not_computed(target):
    """The second of two convolutions reads a quarter of the pixels."""

    def build(emit, x):
        image = emit(relax.op.nn.conv2d(x, constant(32, 32, 1, 1)))
        return relax.op.nn.conv2d(image, constant(32, 32, 1, 1), strides=2)

    tasks = extract_tasks(prepare(function(build, (1, 32, 16, 16)), target), target)
    results = [task.spec.shape.split()[-1] for task in tasks if "conv2d" in task.spec.name]
    assert len(results) == 2
    assert all("x8x8x" in shape for shape in results)
