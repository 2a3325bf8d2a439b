"""Recurrent operators put out what ONNX Runtime does, or ONNX's own evaluator where that lacks something."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import QuantType, quantize_dynamic

from autotune.errors import ModelError

from ....quantised_nets import cpu_target
from ....recurrent_nets import drawn, operator


def expected(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def assert_equal(outputs, truths):
    for output, truth in zip(outputs, truths, strict=True):
        assert output.shape == truth.shape
        np.testing.assert_allclose(output, truth, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "options", "direction"),
    [
        ("LSTM", {}, "bidirectional"),
        ("LSTM", {}, "reverse"),
        ("GRU", {}, "bidirectional"),
        ("GRU", {"linear_before_reset": 1}, "bidirectional"),
        ("RNN", {}, "forward"),
    ],
)
def test_each_operator_in_each_direction_with_first_states(compiled, kind, options, direction):
    given = ("initial_h", "initial_c") if kind == "LSTM" else ("initial_h",)
    x = drawn(9, 6, 2, 5)
    model = operator(kind, x.shape, 20, given, direction=direction, **options)
    assert_equal(compiled(model, x), expected(model, x))


@pytest.mark.parametrize("steps", [1, 300])
def test_a_sequence_of_any_length(compiled, steps):
    x = drawn(9, steps, 1, 3)
    model = operator("LSTM", x.shape, 16)
    assert_equal(compiled(model, x), expected(model, x))


def test_sequences_of_different_lengths_and_peepholes(compiled):
    x = drawn(9, 7, 3, 4)
    model = operator("LSTM", x.shape, 17, ("P", "initial_h"), (3, 7, 1), direction="bidirectional")
    assert_equal(compiled(model, x), expected(model, x))


def test_lengths_that_are_all_full_are_not_looked_at(target):
    from autotune.tvm_backend.models.onnx.importer import import_graph

    x = drawn(9, 7, 2, 4)
    full, open_ = (operator("RNN", x.shape, 8, lengths=lengths) for lengths in ((7, 7), (7, 3)))
    texts = [str(import_graph(model, {"x": list(x.shape)}, {"x": "float32"})) for model in (full, open_)]
    assert ["lengths: T.Buffer" in text for text in texts] == [False, True]


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_sequences_as_the_first_dimension(compiled, kind):
    """ONNX Runtime has no such kernels."""
    x = drawn(9, 3, 4, 5)
    model = operator(kind, x.shape, 8, layout=1)
    assert_equal(compiled(model, x), ReferenceEvaluator(model).run(None, {"x": x}))


ACTIVATIONS = {
    "first": (["HardSigmoid", "Softsign", "Elu"], [0.3, 1.0], [0.4]),
    "second": (["Sigmoid", "ScaledTanh", "Affine"], [0.4, 0.5], [0.7, 0.1]),
    "third": (["Softplus", "LeakyRelu", "Relu"], [0.2], []),
    "fourth": (["ThresholdedRelu", "Tanh", "Tanh"], [0.1], []),
}


@pytest.mark.parametrize("pair", [("first", "second"), ("third", "fourth")])
def test_every_activation_and_other_ones_for_each_direction(compiled, pair):
    names, alphas, betas = ([value for name in pair for value in ACTIVATIONS[name][index]] for index in range(3))
    options = {"activations": names, "activation_alpha": alphas, "activation_beta": betas}
    options = {name: values for name, values in options.items() if values}
    x = drawn(9, 5, 1, 4)
    model = operator("LSTM", x.shape, 8, direction="bidirectional", input_forget=1, clip=0.5, **options)
    assert_equal(compiled(model, x), expected(model, x))


def test_an_activation_that_is_not_known_is_refused(compiled):
    x = drawn(9, 5, 1, 4)
    with pytest.raises(ModelError, match="activation 'Square' is not known"):
        compiled(operator("RNN", x.shape, 4, activations=["Square"]), x)


@pytest.fixture
def quantised(tmp_path):
    """Returns the model of an LSTM whose weights ONNX Runtime has rounded to 8 bits."""

    def quantise(shape, hidden, weights, per_channel=False, **options):
        path = tmp_path / "model.onnx"
        onnx.save(operator("LSTM", shape, hidden, **options), path)
        result = tmp_path / "quantised.onnx"
        quantize_dynamic(path, result, op_types_to_quantize=["LSTM"], weight_type=weights, per_channel=per_channel)
        model = onnx.load(result)
        assert [node.op_type for node in model.graph.node] == ["DynamicQuantizeLSTM"]
        return model

    return quantise


@pytest.mark.parametrize(
    ("cpu", "flag", "weights", "per_channel"),
    [
        ("x86-64", "sse2", "QUInt8", False),
        ("x86-64-v3", "avx2", "QInt8", False),
        ("cascadelake", "avx512_vnni", "QInt8", True),
        pytest.param("x86-64-v3", "avx2", "QInt8", True, marks=pytest.mark.slow),
        pytest.param("cascadelake", "avx512_vnni", "QUInt8", False, marks=pytest.mark.slow),
    ],
)
def test_an_lstm_on_8_bit_weights_rounds_its_states(compiled, quantised, cpu, flag, weights, per_channel):
    x = drawn(9, 9, 2, 12)
    model = quantised(x.shape, 22, QuantType[weights], per_channel, direction="bidirectional")
    for output, truth in zip(compiled(model, x, cpu_target(cpu, flag)), expected(model, x), strict=True):
        np.testing.assert_allclose(output, truth, atol=1e-3)


def test_an_lstm_on_8_bit_weights_with_lengths_first_states_and_peepholes(compiled, quantised):
    x = drawn(9, 7, 3, 4)
    given = ("P", "initial_h", "initial_c")
    model = quantised(x.shape, 17, QuantType.QInt8, given=given, lengths=(3, 6, 1), direction="bidirectional", clip=0.9)
    for output, truth in zip(compiled(model, x), expected(model, x), strict=True):
        np.testing.assert_allclose(output, truth, atol=3e-3)  # a step of a state, where a sum lies between two


def test_all_threads_compute_a_large_lstm_on_8_bit_weights(compiled, quantised):
    x = drawn(9, 5, 1, 12)
    model = quantised(x.shape, 400, QuantType.QUInt8)
    for output, truth in zip(compiled(model, x), expected(model, x), strict=True):
        np.testing.assert_allclose(output, truth, atol=1e-3)


def test_an_lstm_on_8_bit_weights_that_are_computed_is_refused(compiled, quantised):
    x = drawn(9, 5, 1, 4)
    model = quantised(x.shape, 16, QuantType.QInt8)
    model.graph.node.insert(0, onnx.helper.make_node("ReduceMax", ["x"], ["scale"], axes=[0, 1, 2]))
    model.graph.node[1].input[8] = "scale"
    with pytest.raises(ModelError, match="its weights are computed"):
        compiled(model, x)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"clip": 1.0}),
        ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
        ("GRU", {"clip": 1.0}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_a_sequence_is_not_a_number_from_the_step_on_whose_input_is_none(compiled, kind, options):
    x = drawn(9, 5, 2, 8)
    x[2, 1, 3] = np.nan
    outputs = compiled(operator(kind, x.shape, 16, **options), x)
    wanted = np.zeros((5, 1, 2, 16), bool)
    wanted[2:, :, 1] = True
    np.testing.assert_array_equal(np.isnan(outputs[0]), wanted)
