"""Running sums and products are kernels of their own, which compute what TVM's do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tvm import relax

from autotune.tvm_backend.graph.running_sums import replace_running_sums

_OP = relax.op


@pytest.fixture
def replaced(rewritten):
    """The operators after the rewrite."""
    return partial(rewritten, replace_running_sums)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 7, 101), 1),  # wide vectors, one of 16, and five elements
        ((2, 9), -1),
        ((40, 3, 64), 0),  # shared by threads
        ((5,), 0),
    ],
)
def test_sums(replaced: Any, shape: tuple[int, ...], axis: int, exclusive: bool) -> None:
    made = replaced(lambda _, x: _OP.cumsum(x, axis, exclusive=exclusive), shape)
    assert made == ["reshape", "running_sum", "reshape"]


def test_products(replaced: Any) -> None:
    assert replaced(lambda _, x: _OP.cumprod(x, 1), (2, 6, 20)) == ["reshape", "running_product", "reshape"]


def test_truths_are_counted(replaced: Any, const: Any) -> None:
    def build(emit: Any, x: Any) -> Any:
        return _OP.cumsum(emit(_OP.greater(x, const(4, 30))), 0, dtype="int64")

    assert replaced(build, (4, 30)) == ["greater", "reshape", "running_sum", "reshape"]


def test_one_over_all_elements_is_left_to_tvm(replaced: Any) -> None:
    assert replaced(lambda _, x: _OP.cumsum(x), (2, 3)) == ["cumsum"]
