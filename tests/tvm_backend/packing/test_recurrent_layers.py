"""Recurrent layers get the kernel that suits the target."""

from __future__ import annotations

import re

import pytest

from ..recurrent_nets import operator


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
    from autotune.tvm_backend.packing.recurrent_layers import pack_recurrent_layers

    shape = weights(pack_recurrent_layers(module, (8, 16))).ty.shape
    _, blocks, hidden, gates, width = map(int, shape)
    assert (blocks * width, hidden, gates, width % 8) == (48, 40, 4, 0)


def test_a_prepared_model_has_its_weights_packed_as_constants(module, target):
    from autotune.tvm_backend.expressions import is_tensor_constant
    from autotune.tvm_backend.lowering import prepare

    assert is_tensor_constant(weights(prepare(module, target)))


@pytest.mark.parametrize(
    ("cpu", "instruction"),
    [("cascadelake", "vpdpbusd.512"), ("alderlake", "vpdpbusd.256"), ("x86-64-v3", "pmadd.wd"), ("x86-64", None)],
)
def test_a_layer_on_8_bit_weights_uses_the_products_of_the_cpu(tmp_path, cpu, instruction):
    import onnx
    import tvm
    from onnxruntime.quantization import quantize_dynamic

    from autotune.tvm_backend.isa.available import vector_registers
    from autotune.tvm_backend.models.onnx.importer import import_graph
    from autotune.tvm_backend.packing.recurrent_layers import pack_recurrent_layers

    onnx.save(operator("LSTM", (4, 1, 3), 40), tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "quantised.onnx", op_types_to_quantize=["LSTM"])
    module = import_graph(onnx.load(tmp_path / "quantised.onnx"), {"x": [4, 1, 3]}, {"x": "float32"})
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    packed = pack_recurrent_layers(module, vector_registers(target), 1, target)
    assert weights(packed).ty.dtype == "int8"
    (program,) = (str(item) for var, item in packed.functions.items() if var.name_hint.startswith("lstm_steps"))
    intrinsics = set(re.findall(r"llvm\.x86\.[a-z0-9.]+", program))
    assert [name.endswith(instruction or "") for name in intrinsics] == [True] * bool(instruction)


def test_a_model_without_such_layers_stays_as_it_is():
    from autotune.tvm_backend.packing.recurrent_layers import pack_recurrent_layers

    from ..relax_functions import function

    module = function(lambda emit, x: x, (2, 2))
    assert pack_recurrent_layers(module, (8, 16)) is module
