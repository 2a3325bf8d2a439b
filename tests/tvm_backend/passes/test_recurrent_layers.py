"""Recurrent layers get the kernel that suits the target."""

from __future__ import annotations

import pytest

from tests.tvm_backend.recurrent.conftest import operator


@pytest.fixture(scope="module")
def module(target):
    from autotune.tvm_backend.models.onnx.importer import import_graph

    return import_graph(operator("LSTM", (4, 1, 3), 40), {"x": [4, 1, 3]}, {"x": "float32"})


def weights(module):
    """The recurrent weights that the kernel of the layer takes."""
    from tvm import relax

    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    calls = [value for value in values if isinstance(value, relax.Call)]
    (call,) = [call for call in calls if getattr(call.args[0], "name_hint", "").startswith("lstm_steps")]
    return call.args[1].fields[1]


def test_weights_lie_in_blocks_of_vectors_of_the_target(module):
    from autotune.tvm_backend.passes.recurrent_layers import pack_recurrent_layers

    shape = weights(pack_recurrent_layers(module, (8, 16))).ty.shape
    _, blocks, hidden, gates, width = map(int, shape)
    assert (blocks * width, hidden, gates, width % 8) == (48, 40, 4, 0)


def test_a_prepared_model_has_its_weights_packed_as_constants(module, target):
    from autotune.tvm_backend.passes.prepare import prepare
    from autotune.tvm_backend.passes.rewrite import is_tensor_constant

    assert is_tensor_constant(weights(prepare(module, target)))


def test_a_model_without_such_layers_stays_as_it_is():
    from autotune.tvm_backend.passes.recurrent_layers import pack_recurrent_layers
    from tests.tvm_backend.passes.conftest import function

    module = function(lambda emit, x: x, (2, 2))
    assert pack_recurrent_layers(module, (8, 16)) is module
