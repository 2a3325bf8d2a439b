"""What `submit` says of a model that keeps values from one run to the next."""

from __future__ import annotations

from autotune.commands.submit.submit import state_lines
from autotune.storage.formats import KeptValue


def test_each_kept_value_is_told_with_what_it_begins_as() -> None:
    first, *lines = state_lines((KeptValue("a", "a_next", -128.0), KeptValue("b", "b_next", 0.5)))
    assert "hand these outputs back in" in first
    assert lines == [
        "  a_next -> a, all -128 before the first run",
        "  b_next -> b, all 0.5 before the first run",
    ]
    assert state_lines(()) == []
