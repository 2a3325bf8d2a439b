"""Draw mutants of the package by a seed, spread over its rooms by their lines, and keep each as a patch.

    pip install cosmic-ray
    python scripts/suite/draw_mutants.py --count 200 --seed 1

Cosmic Ray makes the mutants. Those that nothing can notice are left out: annotations, which nobody evaluates, and
what only a type checker reads.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent / "mutants"
PREFIX = "core/"
OPERATORS = [
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Lt_GtE",
    "ReplaceComparisonOperator_Gt_LtE",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_FloorDiv",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Mod_FloorDiv",
    "ReplaceBinaryOperator_BitOr_BitAnd",
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "AddNot",
    "NumberReplacer",
    "ZeroIterationForLoop",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
]


@dataclass(frozen=True)
class Mutation:
    """One change that an operator of Cosmic Ray can make in a file."""

    operator: str
    occurrence: int
    line: int


def room_of(path: Path) -> str:
    """The folder of a module below `autotune`, and that below `autotune/tvm_backend` for one of these."""
    parts = path.relative_to(ROOT / "autotune").parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("tvm_backend",) else 1])


def counts_by_room(lines: dict[Path, int], count: int) -> dict[str, int]:
    """How many mutants each room gets, in proportion to its lines, by the method of largest remainders."""
    rooms = dict[str, int]()
    for path, number in lines.items():
        rooms[room_of(path)] = rooms.get(room_of(path), 0) + number
    total = sum(rooms.values())
    counts = {room: count * number // total for room, number in rooms.items()}
    by_remainder = sorted(rooms, key=lambda room: -(count * rooms[room] % total))
    for room in by_remainder[: count - sum(counts.values())]:
        counts[room] += 1
    return counts


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
            yield node.annotation
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield node.returns
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node


def unseen_positions(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """First and last positions (line, column) of what no running program evaluates."""
    spans = []
    for node in _annotations(ast.parse(source)):
        position: Any = node
        spans.append(((position.lineno, position.col_offset), (position.end_lineno, position.end_col_offset)))
    return spans


@lru_cache
def mutations_of(path: Path) -> tuple[Mutation, ...]:
    """All mutations of a file that can be noticed."""
    source = path.read_text()
    unseen = unseen_positions(source)
    nodes = list(ast_nodes(get_ast(source)))
    mutations = []
    for name in OPERATORS:
        operator = cosmic_ray.plugins.get_operator(PREFIX + name)()
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(positions):
            if not any(first <= start <= last for first, last in unseen):
                mutations.append(Mutation(name, occurrence, start[0]))
    return tuple(mutations)


def draw_in(paths: dict[Path, int], count: int, chance: random.Random) -> Iterator[tuple[Path, Mutation]]:
    """Draws files by their lines, then a line that can change, then one of its mutations; no line twice."""
    drawn = set[tuple[Path, int]]()
    while len(drawn) < count:
        path = chance.choices(list(paths), list(paths.values()))[0]
        lines = sorted({mutation.line for mutation in mutations_of(path)} - {line for at, line in drawn if at == path})
        if lines:
            line = chance.choice(lines)
            drawn.add((path, line))
            yield path, chance.choice([mutation for mutation in mutations_of(path) if mutation.line == line])


def patch_of(path: Path, mutation: Mutation) -> str:
    """The mutation as a patch that `git apply` takes."""
    before = path.read_text()
    operator = cosmic_ray.plugins.get_operator(PREFIX + mutation.operator)()
    after = mutate_code(before, operator, mutation.occurrence)
    name = path.relative_to(ROOT)
    return "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}"),
    )


def main() -> None:
    """Writes `mutants/NNN.patch`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    paths = sorted(path for path in (ROOT / "autotune").rglob("*.py") if mutations_of(path))
    lines = {path: len(path.read_text().splitlines()) for path in paths}
    number = 0
    PATCHES.mkdir(exist_ok=True)
    for room, count in sorted(counts_by_room(lines, options.count).items()):
        of_room = {path: number for path, number in lines.items() if room_of(path) == room}
        for path, mutation in draw_in(of_room, count, chance):
            number += 1
            (PATCHES / f"{number:03}.patch").write_text(patch_of(path, mutation))
            print(f"{number:03} {path.relative_to(ROOT)}:{mutation.line} {mutation.operator}", flush=True)


if __name__ == "__main__":
    main()
