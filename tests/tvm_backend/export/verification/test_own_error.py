"""How far the runtime of a model is from itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from autotune.tvm_backend.export.inputs import VerificationInputs
from autotune.tvm_backend.export.verification.own_error import own_error

X = np.linspace(1, 2, 33, dtype=np.float32)


@dataclass(frozen=True)
class Computed:
    """A model that Python computes, and what another way of computing it adds."""

    compute: Callable[..., Any]
    other: float | None = None

    def outputs(self, several: Iterable[list[Any]], _threads: int) -> Iterator[list[Any]]:
        return ([self.compute(*arrays)] for arrays in several)

    def other_ways(self, arrays: list[Any], _threads: int) -> Iterator[list[Any]]:
        return iter(()) if self.other is None else iter([[self.compute(*arrays) + self.other]])


def of(model: Computed, *arrays: Any, until: float | None = None) -> float:
    drawn = VerificationInputs(list(arrays), (False,), {})
    return own_error(model, drawn, [model.compute(*arrays)], 2, until)  # type: ignore[arg-type]


def test_a_smooth_model_is_a_rounding_from_itself() -> None:
    assert 0 < of(Computed(np.exp), X) < 1e-6


def test_a_model_that_rounds_at_a_threshold_is_a_step_from_itself() -> None:
    """The input in the middle is at a threshold, and a step is a twentieth of the largest output."""
    steps = Computed(lambda x: np.floor(x * 10) / 10)
    assert of(steps, np.float32([1.0, 1.5, 2.0])) == pytest.approx(0.05, rel=1e-5)


def test_indices_are_not_moved() -> None:
    assert of(Computed(lambda index: X[index]), np.arange(8)) == 0.0


def test_how_far_another_way_of_the_same_runtime_is_off_counts() -> None:
    assert of(Computed(lambda x: x, other=0.1), X) == pytest.approx(0.05, rel=1e-5)


def test_outputs_that_are_indices_are_one_apart_from_themselves_at_most() -> None:
    assert of(Computed(lambda x: np.int64(x * 10)), np.float32([1.0, 1.5])) == 1.0


def test_what_takes_long_is_run_once_more() -> None:
    calls = []

    def slow(x: Any) -> Any:
        calls.append(x)
        return x

    of(Computed(slow), X, until=0.0)
    assert len(calls) == 2  # the right outputs, and one run with moved inputs
