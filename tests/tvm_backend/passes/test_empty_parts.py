"""Parts without elements are left out of concatenations."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.passes.constants import drop_empty_parts

_OP = relax.op
EMPTY = relax.const(np.zeros((2, 0), np.float32))


@pytest.fixture
def dropped(rewritten):
    """The operators after the rewrite."""
    return partial(rewritten, drop_empty_parts)


def test_a_single_part_with_elements_needs_no_concatenation(dropped):
    assert dropped(lambda emit, x: _OP.exp(emit(_OP.concat([x, EMPTY], axis=1))), (2, 3)) == ["exp"]


def test_parts_with_elements_are_joined_without_the_empty_one(dropped, const):
    def build(emit, x):
        return _OP.exp(emit(_OP.concat([x, EMPTY, const(2, 4)], axis=1)))

    assert dropped(build, (2, 3)) == ["concat", "exp"]


def test_parts_with_elements_stay(dropped, const):
    assert dropped(lambda _, x: _OP.concat([x, const(2, 4)], axis=1), (2, 3)) == ["concat"]


def test_a_part_that_is_computed_and_has_no_elements_is_left_out(dropped):
    def build(emit, x):
        return _OP.exp(emit(_OP.concat([x, emit(_OP.strided_slice(x, [1], [0], [0]))], axis=1)))

    assert dropped(build, (2, 3)) == ["exp"]
