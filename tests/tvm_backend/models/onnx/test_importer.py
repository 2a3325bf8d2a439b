"""TVM's importer with our operators."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from tests.tvm_backend.recurrent.conftest import operator


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


def test_other_operators_that_are_not_known_are_refused(target):
    import tvm

    from autotune.tvm_backend.models.onnx.importer import import_graph

    model = operator("RNN", (2, 1, 3), 4)
    model.graph.node.append(helper.make_node("NoSuchOperator", ["Y"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(tvm.error.OpNotImplemented, match="NoSuchOperator"):
        import_graph(model, {"x": [2, 1, 3]}, {"x": "float32"})
