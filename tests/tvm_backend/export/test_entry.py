"""The entry for inputs of some shapes, or one line that says which there are."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend.export.entry import check_index, pick_entry

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


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
@pytest.mark.parametrize("indices", [[], [0], [29, 0, 3]])
def test_an_index_of_a_row_is_let_through(indices, dtype):
    check_index("ids", np.array(indices, dtype), 30)


@pytest.mark.parametrize(
    ("indices", "outside"),
    [
        (np.array([0, 30]), 30),
        (np.array([[99], [-1]]), -1),
        (np.array([255], np.uint8), 255),
        (np.array([30.5], np.float32), 30),
    ],
)
def test_an_index_without_a_row_is_named(indices, outside):
    with pytest.raises(ValueError) as caught:
        check_index("ids", indices, 30)
    assert str(caught.value) == f"input 'ids' has the index {outside}; its table has 30 rows, counted from 0"
