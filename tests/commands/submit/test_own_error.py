"""What `submit` says of a model whose own runtime is far from itself."""

from __future__ import annotations

import pytest

from autotune.commands.submit.submit import own_error_lines


@pytest.mark.parametrize("own", [(), (0.0,), (1e-6, 3e-5)])
def test_nothing_is_said_of_a_model_that_is_close_to_itself(own: tuple[float, ...]) -> None:
    assert own_error_lines(own) == []


def test_a_model_that_rounds_is_told() -> None:
    (line,) = own_error_lines((1e-6, 0.03))
    assert "3.0%" in line and not line.startswith("warning")


def test_a_model_beyond_use_is_warned_of() -> None:
    (line,) = own_error_lines((0.3,))
    assert line.startswith("warning: ") and "--inputs" in line
