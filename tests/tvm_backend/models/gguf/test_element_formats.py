"""Elements of all formats are what llama.cpp's own package makes of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from autotune.tvm_backend.models.gguf.element_formats import FORMATS

from ....gguf_files import random_rows

NAMES = {item.name: number for number, item in FORMATS.items()}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "BF16"])
def test_elements_are_those_of_the_package_gguf(name: str) -> None:
    rows = random_rows(name, 3, 512, seed=7)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(NAMES[name]))
    np.testing.assert_allclose(FORMATS[NAMES[name]].to_floats(rows), expected, rtol=1e-6, atol=1e-9)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    values = np.array([[1.0, -2.5, 3.0e38, 0.0]], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_allclose(FORMATS[NAMES["BF16"]].to_floats(upper.view(np.uint8)), values, rtol=1e-2)


@pytest.mark.parametrize("name", [name for name, number in NAMES.items() if FORMATS[number].unpack])
def test_codes_fit_their_bits(name: str) -> None:
    unpack = FORMATS[NAMES[name]].unpack
    assert unpack is not None
    blocks = unpack(random_rows(name, 8, 512, seed=3))
    assert blocks.codes.shape == (8, 512)
    assert blocks.codes.max() == 2**blocks.bits - 1
    assert blocks.codes.min() == 0
