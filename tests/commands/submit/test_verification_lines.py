"""What `submit` says of a model whose own runtime does not decide alone whether an export is right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.commands.submit.submit import verification_lines


def lines(*own_error: float, by: str = "runtime", problem: str = "") -> list[str]:
    spec: Any = SimpleNamespace(own_error=own_error, verified_by=(by,) * len(own_error), problem=problem)
    return verification_lines(spec)


def test_a_model_whose_runtime_agrees_with_itself_needs_no_word() -> None:
    for near in ((), (0.0,), (1e-6, 3e-5)):
        assert lines(*near) == []


@pytest.mark.parametrize(
    ("by", "word"), [("runtime", "as far from it"), ("float32", "weights in float32"), ("choices", "TopK")]
)
def test_a_model_that_rounds_or_chooses_is_told_what_decides(by: str, word: str) -> None:
    (line,) = lines(1e-6, 0.03, by=by)
    assert "3.0%" in line and word in line and not line.startswith("warning")


def test_a_model_that_nothing_decides_about_is_warned_of() -> None:
    (line,) = lines(0.3, by="nothing")
    assert line.startswith("warning: ") and "would be refused" in line and "--inputs" in line


def test_a_model_that_cannot_run_on_random_inputs_is_warned_of() -> None:
    (line,) = lines(0.0, by="nothing", problem="ONNX Runtime cannot run it; give real inputs with --inputs FILE.npz")
    assert line.startswith("warning: ") and "ONNX Runtime cannot run it" in line
