"""Sizes of an exported program, which are read and not evaluated."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.models.pytorch.checked import dimensions, evaluate

ROWS = "Symbol('s23', positive=True, integer=True)"
PRODUCT = f"Add(Mul(Integer(8), {ROWS}, Symbol('s27')), Integer(1))"


def test_sums_and_products() -> None:
    assert evaluate(PRODUCT, {"s23": 2, "s27": 3}) == 49
    assert evaluate(ROWS, {}) == "s23"
    assert "s27" in str(evaluate(PRODUCT, {"s23": 2}))
    assert list(dimensions(PRODUCT)) == ["s23", "s27"]


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "Max(s23, 2)", "Symbol(", "Integer('1')", "Symbol(Integer(1))", "5", "(" * 9999],
)
def test_whatever_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text, {})
