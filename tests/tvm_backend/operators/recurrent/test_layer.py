"""The functions of a recurrent layer, as the attributes of an operator name them."""

from __future__ import annotations

from autotune.tvm_backend.operators.recurrent.layer import Activation, activations


def test_without_names_each_direction_has_the_defaults():
    assert activations("GRU", 2, (), (), ()) == ((Activation("Sigmoid"), Activation("Tanh")),) * 2


def test_functions_take_parameters_in_order_and_others_have_defaults():
    ((first, second, third),) = activations("LSTM", 1, ["hardsigmoid", "tanh", "affine"], [0.3], [0.4])
    assert first == Activation("HardSigmoid", 0.3, 0.4)
    assert second == Activation("Tanh")
    assert third == Activation("Affine", 1.0, 0.0)
