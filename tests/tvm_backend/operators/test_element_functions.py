"""An elementwise operator computes the same as an expression, as in bfloat16, and in a table, as of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from autotune.tvm_backend.operators.element_functions import FUNCTIONS

_BOTH = sorted(name for name, function in FUNCTIONS.items() if function.expression and function.numbers)
_OF_TWO = {f"relax.{name}" for name in ("add", "divide", "maximum", "minimum", "multiply", "subtract")}
_ROUNDED = 5e-5  # what the polynomial of erf may be off by


def test_there_are_operators_with_both() -> None:
    assert {"relax.erf", "relax.nn.silu", "relax.subtract", "relax.divide"} < set(_BOTH)


@pytest.mark.parametrize("name", _BOTH)
def test_the_expression_and_the_table_agree(name: str, target) -> None:
    function = FUNCTIONS[name]
    assert function.expression is not None
    assert function.numbers is not None
    one = np.linspace(-6, 6, 241, dtype=np.float32)
    values = [one, one[::-1] + np.float32(0.01)][: 2 if name in _OF_TWO else 1]
    operands = [te.placeholder(item.shape, "float32", f"x{index}") for index, item in enumerate(values)]
    result = te.compute(one.shape, lambda i: function.expression(*(item[i] for item in operands)))
    compiled = tvm.compile(te.create_prim_func([*operands, result]), target)
    written = tvm.runtime.tensor(np.zeros_like(one))
    compiled(*map(tvm.runtime.tensor, values), written)
    np.testing.assert_allclose(written.numpy(), function.numbers(*values), rtol=_ROUNDED, atol=_ROUNDED)
