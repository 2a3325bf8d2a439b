"""All forms of quantised networks that ONNX Runtime writes and reads are the same integer kernels."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

from ..quantised_nets import Network, outcome
from .test_integer_network import CLASSIFIER, classifier

_ROUNDED = 1e-6  # of the largest value: floats in another order


def test_the_operator_form_is_the_same_kernels(quantised, here):
    result = outcome(quantised(classifier(), format=QuantFormat.QOperator), here)
    assert result.kernels[:5] == CLASSIFIER
    assert result.share == 0


@pytest.mark.parametrize("per_channel", (True, pytest.param(False, marks=pytest.mark.slow)))
def test_a_product_that_is_quantised_as_it_runs(quantised_dynamically, here, per_channel):
    net = Network((5, 20))
    net.add("Relu", net.gemm(20, 33))
    net.matmul(33, 7)
    result = outcome(quantised_dynamically(net, per_channel=per_channel), here)
    assert result.kernels.count("integer_conv2d_scaled") == 2
    assert result.error < _ROUNDED


def test_values_that_are_all_zero_are_quantised_as_they_run(quantised_dynamically, here):
    net = Network((5, 20))
    net.add("Mul", "input", net.constant(np.float32(0)))
    net.gemm(20, 16)
    assert outcome(quantised_dynamically(net), here).error < _ROUNDED


@pytest.mark.parametrize("groups, channels", ((8, 32), (3, 72), (5, 25)))
def test_a_convolution_in_groups(quantised, here, groups, channels):
    net = Network((1, 8, 6, 6))
    net.conv(8, channels, 1)
    net.conv(channels, channels, group=groups, pads=[1, 1, 1, 1])
    result = outcome(quantised(net), here)
    assert result.kernels.count("integer_conv2d") == 2
    assert result.share == 0


def test_unsigned_weights(quantised, here):
    """Their zero points take them out of the range of signed bytes."""
    net = Network((1, 16, 6, 6))
    net.conv(16, 24)
    net.conv(24, 24, 1)
    result = outcome(quantised(net, weights=QuantType.QUInt8, per_channel=False), here)
    assert result.kernels.count("integer_conv2d") == 2
    assert result.share == 0
