"""Indices and conditions as CUDA C, which C computes as TVM would."""

from __future__ import annotations

import re

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from autotune.tvm_backend.cuda.index_code import NoIndex, code_of
from autotune.tvm_backend.cuda.products import analyzer_of
from autotune.tvm_backend.programs import replaced

ROW, COLUMN = (tirx.Var(name, "int32") for name in ("i", "j"))


def code(expression, names=None):
    return code_of(expression, {ROW: "i", COLUMN: "j"} if names is None else names, analyzer_of({ROW: 12, COLUMN: 5}))


def value(text, **values):
    """What C makes of an expression without divisions by functions, computed by Python."""
    text = re.sub(r"!(?!=)", " not ", text).replace("&&", " and ").replace("||", " or ").replace("/", "//")
    return eval(text, {"min": min, "max": max, **values})


@pytest.mark.parametrize(
    "expression",
    [
        ROW * 7 + COLUMN - 3,
        (ROW * 5 + COLUMN) // 4,
        (ROW * 5 + COLUMN) % 4,
        tirx.min(ROW, COLUMN) * tirx.max(ROW, 3),
        tirx.all(ROW >= 1, ROW < 9, COLUMN != 2),
        tirx.any(ROW <= COLUMN, tirx.Not(COLUMN > 3), tirx.EQ(ROW, 11)),
        tirx.Cast("int64", ROW) * tirx.IntImm("int64", 3),
    ],
    ids=str,
)
def test_it_has_the_value_that_tvm_computes(expression):
    text = code(expression)
    for i in range(12):
        for j in range(5):
            known = replaced(replaced(expression, ROW, tirx.IntImm("int32", i)), COLUMN, tirx.IntImm("int32", j))
            assert int(value(text, i=i, j=j)) == int(Analyzer().simplify(known).value)


def test_what_may_be_negative_is_divided_by_a_function():
    assert code(ROW // 4) == "(i / 4)"
    assert code((ROW - 3) // 4) == "autotune::pipeline::floor_div((i - 3), 4)"
    assert code((ROW - 3) % 4) == "autotune::pipeline::floor_mod((i - 3), 4)"


def test_what_is_no_index_is_refused():
    with pytest.raises(NoIndex, match="depends on j"):
        code(ROW + COLUMN, {ROW: "i"})
    with pytest.raises(NoIndex, match="FloatImm"):
        code(tirx.const(1.5, "float32"))
