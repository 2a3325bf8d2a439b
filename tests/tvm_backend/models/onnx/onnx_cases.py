"""ONNX's own tests of its operators."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from functools import cache
from typing import Any

from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase

_LEFT_OUT = (".averagepool", ".lppool")  # which take seconds to compute what is right


@cache
def onnx_cases() -> dict[str, Any]:
    """The tests by their names without `test_`, but for those of some poolings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            if not module.name.endswith(_LEFT_OUT):
                importlib.import_module(module.name)
    made: list[TestCase] = node._NodeTestCases
    return {case.name.removeprefix("test_"): case for case in made}
