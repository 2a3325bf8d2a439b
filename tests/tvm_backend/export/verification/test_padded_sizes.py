"""Which open dimensions are tried with padding, and at which sizes."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.export.verification.padded_sizes import tuned_sizes, untuned


@pytest.mark.parametrize(
    ("tuned", "tried"),
    [
        ((32, 128, 512), [1, 33, 129, 320]),
        ((1, 16), [2, 8]),
        ((4, 6), [1, 5]),
        ((1, 2), []),
        ((2, 1, 3), []),
    ],
)
def test_the_smallest_the_next_after_each_tuned_size_and_one_in_the_middle_are_tried(
    tuned: tuple[int, ...], tried: list[int]
) -> None:
    assert untuned(tuned) == tried


def test_a_dimension_without_a_name_of_one_size_or_without_sizes_between_is_not_tried() -> None:
    entries = {str(n): {"x": (1, n, n, count)} for n, count in ((4, 2), (16, 1))}
    assert tuned_sizes(entries, {"x": ("batch", "sequence", "", "channels")}) == {"sequence": (4, 16)}
