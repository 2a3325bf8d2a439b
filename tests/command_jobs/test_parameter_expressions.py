"""Restrictions are evaluated for many combinations at once, and nothing but arithmetic and comparisons is."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.command_jobs.parameter_expressions import Expression
from autotune.errors import InvalidData

COLUMNS = {
    "a": np.array([1, 2, 3, 0]),
    "b": np.array([2, 0, 3, 4]),
    "flags": np.array(["-O2", "-O3", "", "-Os"], dtype=object),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a <= b", [True, False, True, True]),
        ("1 <= a * b <= 9", [True, False, True, False]),
        ("a == 1 or b == 4 and not a", [True, False, False, True]),
        ("(a + b) % 2 == 0 and a - b // 2 >= 0", [False, True, True, False]),
        ("a ** 2 in (1, 9)", [True, False, True, False]),
        ("flags not in ['-O3', '']", [True, False, False, True]),
        ("a", [True, True, True, False]),
        ("not flags", [False, False, True, False]),
        ("a / 2 == 1.5", [False, False, True, False]),
    ],
)
def test_an_expression_means_what_it_means_in_python(text: str, holds: list[bool]) -> None:
    assert Expression.of(text, COLUMNS).holds(COLUMNS).tolist() == holds


def test_a_division_by_zero_makes_its_comparison_false() -> None:
    assert Expression.of("a % b == 0", COLUMNS).holds(COLUMNS).tolist() == [False, False, True, True]
    assert Expression.of("a / b != 7", COLUMNS).holds(COLUMNS).tolist() == [True, False, True, True]
    assert Expression.of("b == 0 or a % b == 0", COLUMNS).holds(COLUMNS).tolist() == [False, True, True, True]


def test_whole_numbers_are_exact() -> None:
    column = {"n": np.array([2**53, 2**53 + 1])}
    assert Expression.of("n == 9007199254740993", column).holds(column).tolist() == [False, True]


@pytest.mark.parametrize(
    "text",
    ["n * n * n > 0", "n ** 3 > 0", "n + 4611686018427387000 > n"],
)
def test_numbers_that_become_too_large_are_refused_rather_than_wrong(text: str) -> None:
    column = {"n": np.array([2**40])}
    with pytest.raises(InvalidData, match="larger than 2\\^62"):
        Expression.of(text, column).holds({"n": np.array([2**61])})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__import__('os').system('id')", "a call is not allowed"),
        ("a.__class__", "an attribute is not allowed"),
        ("lambda: a", "a lambda is not allowed"),
        ("[x for x in a]", "a list comprehension is not allowed"),
        ("a if b else 0", "if ... else is not allowed"),
        ("a[0]", "an index is not allowed"),
        ("{a: b}", "a dictionary is not allowed"),
        ("f'{a}'", "an f-string is not allowed"),
        ("(c := a)", "an assignment is not allowed"),
        ("a is b", "is is not allowed"),
        ("a << 70", "LShift is not allowed"),
        ("a and missing > 1", "names 'missing', which is no parameter"),
        ("a == None", "neither a number nor text"),
        ("a == b''", "neither a number nor text"),
        ("a; b", "is no expression"),
        ("import os", "is no expression"),
        ("", "is no expression"),
        ("(" * 300 + "a" + ")" * 300, "is no expression"),
        ("a + " * 2000 + "a", "more than 4096 characters"),
        ("a > 99999999999999999999", "larger than 2^62"),
    ],
)
def test_whatever_else_python_has_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(InvalidData) as refused:
        Expression.of(text, COLUMNS)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("9 ** 9 ** 9 > a", "an exponent must be from 0 to 64"),
        ("a ** -1 > 0", "an exponent must be from 0 to 64"),
        ("flags < 3", "mixes text and numbers"),
        ("flags * 1000000000 == ''", "mixes text and numbers"),
        ("a in b", "`in` needs a list"),
        ("[a] == 1", "a list belongs behind `in`"),
    ],
)
def test_what_cannot_be_evaluated_says_so(text: str, says: str) -> None:
    with pytest.raises(InvalidData, match=says.replace("*", "\\*").replace("[", "\\[")):
        Expression.of(text, COLUMNS).holds(COLUMNS)
