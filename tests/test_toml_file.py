"""The line on which a value of a TOML file begins."""

from __future__ import annotations

import pytest

from autotune.toml_file import line_of

TEXT = """\
# a comment

name = "one"
list = [
    1,  # ]
    2,
]
long = '''
[table]
''' # the end
inline = { a = 1, b = [1, 2] }
dotted.key = 3

[table]
value = 1
[[arrays]]
value = 1
[arrays.inner]
value = 2
[[arrays]]
value = 3
  [[arrays.deep]]
  value = 4
  [[arrays.deep]]
  value = 5
[table."a.b"]
value = 6
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ((), 1),
        (("name",), 3),
        (("list", 1), 4),
        (("long",), 8),
        (("inline", "b", 1), 11),
        (("dotted", "key"), 12),
        (("table",), 14),
        (("table", "value"), 15),
        (("arrays", 0, "value"), 17),
        (("arrays", 0, "inner", "value"), 19),
        (("arrays", 1), 20),
        (("arrays", 1, "value"), 21),
        (("arrays", 1, "deep", 0, "value"), 23),
        (("arrays", 1, "deep", 1, "value"), 25),
        (("table", "a.b", "value"), 27),
    ],
)
def test_it_is_that_of_its_statement(keys: tuple[str | int, ...], line: int) -> None:
    assert line_of(TEXT, keys) == line
    assert line_of(TEXT.replace("\n", "\r\n"), keys) == line


def test_a_statement_that_seems_to_end_on_each_line_is_not_read_for_ever() -> None:
    text = "list = [\n" + "  [],[]\n," * 50_000 + "]\nlast = 1\n"
    assert 1 <= line_of(text, ("last",)) <= text.count("\n")
