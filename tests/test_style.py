"""Rules of style that no linter has: names that say one thing, one assignment a line, and files of one concept."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "autotune"
VAGUE = {"_LEAST", "_LONGEST", "_MOST", "at", "each", "found", "it", "known", "parts"}
# `at` as a field is a moment, in files too.
MAX_LINES = 400  # of a file
# A command is called as on the command line, and each importer reads what it calls a program.
NAMED_BY_RULE = ("commands/*.py", "tvm_backend/models/*/program.py")
sources = cache(lambda: {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")})


def fields(tree: ast.AST) -> set[ast.AST]:
    """The names of the fields of classes."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {item.target for node in classes for item in node.body if isinstance(item, ast.AnnAssign)}


def variables(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The variables of functions that are assigned, and their lines."""
    declared = fields(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in declared:
            yield node.id, node.lineno


def is_packed(node: ast.AST) -> bool:
    """Whether a line assigns values that have nothing to do with each other: no swap, and nothing unpacked."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != len(node.targets[0].elts):
        return False
    assigned = {ast.unparse(item) for item in ast.walk(node.targets[0])}
    read = {ast.unparse(item) for item in ast.walk(node.value) if isinstance(item, ast.Name | ast.Attribute)}
    return not assigned & read


def where(lines: list[tuple[Path, int]]) -> list[str]:
    return [f"{path.relative_to(PACKAGE.parent)}:{line}" for path, line in lines]


def test_no_variable_has_a_name_that_says_nothing() -> None:
    assert not where(
        [(path, line) for path, tree in sources().items() for own, line in variables(tree) if own in VAGUE]
    )


def test_a_line_assigns_one_value() -> None:
    assert not where([(path, n.lineno) for path, tree in sources().items() for n in ast.walk(tree) if is_packed(n)])


def test_no_two_files_have_the_same_name() -> None:
    ruled = {path for pattern in NAMED_BY_RULE for path in PACKAGE.glob(pattern)}
    names = Counter(path.name for path in sources() if path not in ruled and path.name != "__init__.py")
    assert not [name for name, count in names.items() if count > 1]


def test_no_two_public_classes_have_the_same_name() -> None:
    classes = [node.name for tree in sources().values() for node in tree.body if isinstance(node, ast.ClassDef)]
    assert not [name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")]


def test_no_file_is_longer_than_a_reader_keeps_in_mind() -> None:
    files = [*sources(), *Path(__file__).parent.rglob("*.py")]
    lengths = {str(path): len(path.read_text().splitlines()) for path in files}
    assert not {path: length for path, length in lengths.items() if length > MAX_LINES}
