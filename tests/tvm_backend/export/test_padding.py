"""Inputs are padded to the smallest entry that takes them, and only where they have to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.tvm_backend.export.padding import cut, padded, pick_entry, sizes_of

ENTRIES = {f"sequence={size}": {"input_ids": (1, size), "mask": (1, size), "factor": ()} for size in (32, 128, 512)}


def test_the_entry_with_the_shapes_of_the_inputs_is_picked():
    assert pick_entry(ENTRIES, ENTRIES["sequence=128"], {}) == "sequence=128"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"input_ids": (1, 64), "mask": (1, 64), "factor": ()},
            "no entry for input_ids of 1x64: this export has 1x32, 1x128, 1x512",
        ),
        (
            {"input_ids": (1, 32), "mask": (1, 64), "factor": ()},
            "no entry for mask of 1x64: this export has 1x32, 1x128, 1x512",
        ),
        (
            {"input_ids": (1, 32), "mask": (1, 32), "factor": (1,)},
            "no entry for factor of 1: this export has scalar",
        ),
        (
            {"input_ids": (1, 32), "mask": (1, 128), "factor": ()},
            "no entry for input_ids of 1x32 with mask of 1x128 with factor of scalar:"
            " this export has 1x32 with 1x32 with scalar, 1x128 with 1x128 with scalar, 1x512 with 1x512 with scalar",
        ),
    ],
)
def test_the_error_for_shapes_that_no_entry_has_names_the_input_and_what_there_is(given, says):
    with pytest.raises(ValueError) as caught:
        pick_entry(ENTRIES, given, {})
    assert str(caught.value) == says


OPEN = {"input_ids": ("", "sequence"), "mask": ("", "sequence")}


@pytest.mark.parametrize(("size", "entry"), [(1, 32), (32, 32), (33, 128), (128, 128), (129, 512), (512, 512)])
def test_an_open_dimension_takes_the_next_larger_entry(size: int, entry: int) -> None:
    given = {"input_ids": (1, size), "mask": (1, size), "factor": ()}
    assert pick_entry(ENTRIES, given, OPEN) == f"sequence={entry}"
    assert sizes_of(given, OPEN) == {"sequence": size}


def test_of_several_entries_that_are_large_enough_the_one_with_the_fewest_elements_is_taken() -> None:
    entries = {str(shape): {"x": shape} for shape in ((1, 64), (8, 8), (8, 64))}
    dims = {"x": ("batch", "sequence")}
    assert pick_entry(entries, {"x": (1, 7)}, dims) == "(1, 64)"
    assert pick_entry(entries, {"x": (2, 7)}, dims) == "(8, 8)"
    assert pick_entry(entries, {"x": (2, 9)}, dims) == "(8, 64)"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input_ids": (1, 600), "mask": (1, 600)}, "sequence is 600 in input_ids; this library takes 1 to 512"),
        ({"input_ids": (1, 0), "mask": (1, 0)}, "sequence is 0 in input_ids; this library takes 1 to 512"),
        ({"input_ids": (1, 7), "mask": (1, 8)}, "sequence is 7 in input_ids and 8 in mask"),
        ({"input_ids": (2, 7), "mask": (2, 7)}, "no entry for input_ids of 2x7: this export has 1x32, 1x128, 1x512"),
        ({"input_ids": (7,), "mask": (1, 7)}, "no entry for input_ids of 7: this export has 1x32, 1x128, 1x512"),
    ],
)
def test_the_error_for_sizes_that_cannot_be_padded_names_the_dimension(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        pick_entry(ENTRIES, {**given, "factor": ()}, OPEN)
    assert str(caught.value) == says


def test_arrays_of_a_tuned_size_are_not_copied() -> None:
    array = np.ones((2, 3))
    assert padded(array, (2, 3)) is array
    assert cut(array, ("batch", ""), {"batch": 2}) is array
    assert cut(array, ("", ""), {"batch": 1}) is array


def test_others_have_zeros_at_their_ends_which_are_cut_off_again() -> None:
    whole = padded(np.ones((2, 3), np.int64), (3, 5))
    assert whole.dtype == np.int64 and whole.sum() == 6 and (whole[:2, :3] == 1).all()
    part = cut(whole, ("batch", "sequence"), {"batch": 2, "sequence": 3})
    assert part.flags.c_contiguous and np.array_equal(part, np.ones((2, 3)))
    scalar = np.float32(3) + np.zeros(())
    assert padded(scalar, ()) is scalar and cut(scalar, (), {"batch": 2}) is scalar
