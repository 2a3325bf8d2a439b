"""TVM's importer with our operators."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from autotune.errors import OperatorRefused

from ...recurrent_nets import operator


def calls(module):
    return [binding.value for block in module["main"].body.blocks for binding in block.bindings]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_operator_is_one_kernel_for_any_number_of_steps(target, kind):
    from autotune.tvm_backend.models.onnx.importer import import_graph

    lengths = {
        steps: len(calls(import_graph(operator(kind, (steps, 1, 3), 4), {"x": [steps, 1, 3]}, {"x": "float32"})))
        for steps in (1, 10_000)
    }
    assert lengths[1] == lengths[10_000]


def test_an_operator_that_nobody_knows_is_refused(target):

    from autotune.tvm_backend.models.onnx.importer import import_graph

    model = operator("RNN", (2, 1, 3), 4)
    model.graph.node.append(helper.make_node("NoSuchOperator", ["Y"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(OperatorRefused) as caught:
        import_graph(model, {"x": [2, 1, 3]}, {"x": "float32"})
    refusal = caught.value.refusal
    assert refusal is not None
    assert (refusal.operator, refusal.node) == ("NoSuchOperator", "z")


def test_an_operator_that_is_not_taken_is_said_with_its_inputs_and_a_next_step(target):
    from autotune.tvm_backend.models.onnx.importer import import_graph

    model = operator("RNN", (2, 1, 3), 4)
    model.graph.node.append(helper.make_node("Reshape", ["Y", "x"], ["z"], "odd"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(OperatorRefused) as caught:
        import_graph(model, {"x": [2, 1, 3]}, {"x": "float32"})
    refusal = caught.value.refusal
    assert refusal is not None and str(caught.value) == refusal.text()
    assert (refusal.operator, refusal.node, refusal.version > 0) == ("Reshape", "odd", True)
    assert "float32" in refusal.given and "docs/guides/models.md" in refusal.advice
