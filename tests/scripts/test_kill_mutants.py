"""Where a mutant is applied after its code has moved."""

from __future__ import annotations

from pathlib import Path

import pytest

PATCH = """--- a/autotune/old.py
+++ b/autotune/old.py
@@ -7,3 +7,3 @@
     value = 1
-    limit = 4096
+    limit = 4097
     return value
"""
NEW, OTHER = Path("new.py"), Path("other.py")


@pytest.fixture
def place(load_script):
    return load_script("suite.kill_mutants").place


def test_it_is_applied_where_its_lines_are(place):
    modules = {NEW: "def f():\n    value = 1\n    limit = 4096\n    return value\n", OTHER: "    limit = 4096\n"}
    assert place(PATCH, modules) == (NEW, "def f():\n    value = 1\n    limit = 4097\n    return value\n")


def test_changed_lines_alone_are_enough_where_the_lines_around_them_are_gone(place):
    assert place(PATCH, {NEW: "def f():\n    limit = 4096\n"}) == (NEW, "def f():\n    limit = 4097\n")


@pytest.mark.parametrize(
    "text", ["def f():\n    limit = 8192\n", "def f():\n    limit = 4096\n    g()\n    limit = 4096\n"],
    ids=["gone", "twice"],
)  # fmt: skip
def test_it_has_no_place_where_its_lines_are_gone_or_occur_twice(place, text):
    assert place(PATCH, {NEW: text}) is None


def test_it_has_no_place_where_two_modules_have_its_lines(place):
    text = "def f():\n    limit = 4096\n"
    assert place(PATCH, {NEW: text, OTHER: text}) is None
