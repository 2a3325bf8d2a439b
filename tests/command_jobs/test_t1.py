"""Spaces in T1 are read without evaluating their expressions as Python."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.command_jobs.t1 import configuration_space
from autotune.errors import InvalidData


def t1(values: str, type: str = "int", *conditions: str) -> dict[str, Any]:
    parameter = {"Name": "p", "Type": type, "Values": values, "Default": 1}
    space = {
        "TuningParameters": [parameter],
        "Conditions": [{"Expression": condition, "Parameters": ["p"]} for condition in conditions],
    }
    return {"General": {"BenchmarkName": "x"}, "ConfigurationSpace": space, "KernelSpecification": {}}


@pytest.mark.parametrize(
    ("text", "type", "values"),
    [
        ("[1, 2, -4]", "int", (1, 2, -4)),
        ("(1, 2)", "uint", (1, 2)),
        ("range(4)", "int", (0, 1, 2, 3)),
        ("list(range(2, 9, 3))", "int", (2, 5, 8)),
        ("[1, 2] + list(range(32, 97, 32))", "int", (1, 2, 32, 64, 96)),
        ("[2**i for i in range(0, 4)]", "int", (1, 2, 4, 8)),
        ("[i for i in range(1, 10+1)]", "int", tuple(range(1, 11))),
        ("[0.5, 1]", "float", (0.5, 1.0)),
        ("['a', 'b c']", "string", ("a", "b c")),
        ("[True, False]", "bool", (True, False)),
    ],
)
def test_values_are_lists_ranges_and_what_is_made_of_them(text: str, type: str, values: tuple[Any, ...]) -> None:
    parameters, conditions = configuration_space(t1(text, type, "p > 1"))
    assert parameters == {"p": values} and conditions == ("p > 1",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__import__('os').listdir('/')", "is not supported"),
        ("open('/etc/passwd').read()", "is not supported"),
        ("[print(1)]", "a call is not allowed"),
        ("[i for i in range(3) if i]", "one loop and no condition"),
        ("[i*j for i in range(3) for j in range(3)]", "one loop and no condition"),
        ("range(10**9)", "more than 10000"),
        ("[i for i in range(10**12)]", "more than 10000"),
        ("[1] * 10**9", "is not supported"),
        ("range(1.5)", "range takes whole numbers"),
        ("[9**9**9]", "an exponent must be"),
        ("7", "is not supported"),
        ("", "is no expression"),
        ("['x']", "'x' is no int"),
        ("['" + "9" * 4000 + "']", "is no int"),
        ("[1e999]", "'inf' is no int"),
        ("[1.5]", "'1.5' is no int"),
        ("[1]" + "+[1]" * 1000, "nested too deeply"),
    ],
)
def test_everything_else_is_refused_with_the_name_of_the_parameter(text: str, says: str) -> None:
    with pytest.raises(InvalidData) as refused:
        configuration_space(t1(text))
    assert "'p'" in str(refused.value) and says in str(refused.value)


@pytest.mark.parametrize(
    "document", [{}, {"ConfigurationSpace": []}, {"ConfigurationSpace": {"TuningParameters": [{"Name": "p"}]}}]
)
def test_what_is_no_t1_says_what_is_missing(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidData, match="ConfigurationSpace"):
        configuration_space(document)
