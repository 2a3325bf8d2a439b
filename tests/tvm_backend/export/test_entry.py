"""The entry for inputs of some shapes, or one line that says which there are."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.export.entry import pick_entry

ENTRIES = {f"sequence={size}": {"input_ids": (1, size), "mask": (1, size), "factor": ()} for size in (32, 128, 512)}


def test_it_is_the_one_with_these_shapes():
    assert pick_entry(ENTRIES, ENTRIES["sequence=128"]) == "sequence=128"


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
def test_where_none_has_them_the_error_names_the_input_and_what_there_is(given, says):
    with pytest.raises(ValueError) as caught:
        pick_entry(ENTRIES, given)
    assert str(caught.value) == says
