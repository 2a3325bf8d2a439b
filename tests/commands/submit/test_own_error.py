"""What `submit` says of a model whose own runtime is far from itself."""

from __future__ import annotations

from autotune.commands.submit.submit import own_error_lines


def test_a_model_that_rounds_is_told_and_one_beyond_use_is_warned_of() -> None:
    for near in ((), (0.0,), (1e-6, 3e-5)):
        assert own_error_lines(near) == []
    (line,) = own_error_lines((1e-6, 0.03))
    assert "3.0%" in line and not line.startswith("warning")
    (line,) = own_error_lines((0.3,))
    assert line.startswith("warning: ") and "--inputs" in line
