"""What the system answers decides whether a library with AMX is loaded, and what its user is told."""

from __future__ import annotations

import errno
import os

import pytest

from autotune.tvm_backend.isa import amx
from autotune.tvm_backend.isa.instruction_sets import cpu_flags


def test_tiles_that_the_system_keeps_are_no_problem() -> None:
    assert amx.refusal(0) == ""


def test_a_stack_that_is_too_small_is_named_with_the_remedy() -> None:
    text = amx.refusal(errno.ENOSPC)
    assert "alternate signal stack" in text and "before that stack is set, or set one of 64 KiB" in text


@pytest.mark.parametrize("error", [errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP])
def test_any_other_answer_is_told_as_the_system_words_it(error: int) -> None:
    assert f"({os.strerror(error)})" in amx.refusal(error) and "export the model for a CPU" in amx.refusal(error)


@pytest.mark.skipif("amx_tile" in cpu_flags(), reason="this CPU has the tiles")
def test_a_cpu_without_tiles_is_refused_them() -> None:
    assert amx.ask_for_tiles() > 0
