"""Wrong kernels made of right ones: without a barrier, with a stage less, or with an address that is off by one."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

BARRIER = "__syncthreads();"
MARK = "autotune::pipeline::"
WARP = 32


@dataclass(frozen=True)
class Mutant:
    """A changed source.

    Attributes:
        kind: What is wrong.
        line: The line as it was.
    """

    kind: str
    line: str
    source: str


# What is replaced in `pipeline.cuh` and `attention.cuh`, and by what. The first ones read a tile, or write one, before
# its time.
_OF_PRODUCTS = {
    "a stage less": (
        ("wait<STAGES - 2>();", "wait<STAGES - 1>();"),
        ("copy(tile + STAGES - 1, writing);", "copy(tile + STAGES - 2, writing);"),
        ("int reading = 0, writing = STAGES - 1;", "int reading = 0, writing = STAGES - 2;"),
        ("reading = reading == STAGES - 1 ?", "reading = reading == STAGES - 2 ?"),
        ("tile < STAGES - 1; ++tile) copy", "tile < STAGES - 2; ++tile) copy"),
    ),
    "an address off by one": (
        ("source.data + source.offset(s, t)", "source.data + source.offset(s, t) + 1"),
        ("a, row, tile * A::TERMS", "a, row, tile * A::TERMS + 1"),
        ("b, column, tile * A::TERMS", "b, column + 1, tile * A::TERMS"),
        ("fragment * ROWS * LINE", "(fragment + 1) * ROWS * LINE"),
        ("lane() / 4, across", "lane() / 4 + 1, across"),
        ("place(side + below * 8 + lane() % 8, beside)", "place(side + below * 8 + lane() % 8 + 1, beside)"),
        ("stage + A::BYTES, begin_b, i, step", "stage + A::BYTES, begin_b, i, step ^ 1"),
        ("shared + stage * STAGE + A::BYTES", "shared + stage * STAGE + A::BYTES + 16"),
        ("reinterpret_cast<const int4*>(all + result_place", "reinterpret_cast<const int4*>(all + 4 + result_place"),
    ),
}
_OF_ATTENTION = {
    "a stage less": (
        ("wait<1>();", "wait<2>();"),
        ("Q::BYTES + tile % 2 * STAGE", "Q::BYTES + 0 * STAGE"),
        ("copy(tile + 1);", "copy(tile);"),
    ),
    "an address off by one": (
        (
            "Head<KEYS, OfK::WIDTH, SIZE, true>{k}, tile * TILE, 0",
            "Head<KEYS, OfK::WIDTH, SIZE, true>{k}, tile * TILE + 1, 0",
        ),
        (
            "Head<KEYS, OfV::WIDTH, SIZE, false>{v}, 0, tile * TILE",
            "Head<KEYS, OfV::WIDTH, SIZE, false>{v}, 0, tile * TILE + 1",
        ),
        ("Head<QUERIES, OfQ::WIDTH, SIZE, true>{q}, row, 0", "Head<QUERIES, OfQ::WIDTH, SIZE, true>{q}, row + 1, 0"),
        ("Q::template begin<true>(warp() * ROWS)", "Q::template begin<true>(warp() * ROWS + 1)"),
        ("key + j * COLUMNS + lane() % 4 * 2 + i % 2", "key + j * COLUMNS + lane() % 4 * 2 + i % 2 + 1"),
        ("row + warp() * ROWS + lane() / 4, tile", "row + warp() * ROWS + lane() / 4 + 1, tile"),
        ("lane() / 4 + half * 8, columns)", "lane() / 4 + half * 8, columns ^ 1)"),
        ("const float* right = scores[step * 2 + 1]", "const float* right = scores[step * 2]"),
        ("(row + down) * OfOut::WIDTH", "(row + down + 1) * OfOut::WIDTH"),
        ("values, begin, j, step", "values, begin, j, step ^ 1"),
        ("of_key < KEYS;", "of_key <= KEYS;"),
    ),
    "a sum not corrected": (
        ("total[half] *= kept;", ""),
        ("sums[j][half * 2] *= kept, ", ""),
        ("largest[half] = most[half];", ""),
        ("most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2));", ""),
        ("total[half] += __shfl_xor_sync(~0u, total[half], 1);", ""),
    ),
}
_ATTENTION = "namespace attention {"


def mutants(source: str, draw: random.Random) -> list[Mutant]:
    """Return one mutant of each kind that the source has a place for, drawn among what its kernels use."""
    begun = max(0, source.find(_ATTENTION))
    used = source[begun:]
    made = [_without_barrier(used, draw)]
    for kind, changes in (_OF_ATTENTION if begun else _OF_PRODUCTS).items():
        possible = [(old, new) for old, new in changes if old in used]
        if possible and MARK in source:
            old, new = draw.choice(possible)
            made.append(Mutant(kind, old, used.replace(old, new)))
    return [replace(item, source=source[:begun] + item.source) for item in made if item is not None]


def _without_barrier(source: str, draw: random.Random) -> Mutant | None:
    """None where no barrier is in a kernel of more than a warp."""
    places = [match.start() for match in re.finditer(re.escape(BARRIER), source)]
    needed = [place for place in places if threads(source, place) > WARP]
    if not needed:
        return None
    place = draw.choice(needed)
    line = source[source.rfind("\n", 0, place) + 1 : source.find("\n", place)].strip()
    return Mutant("a barrier less", line, source[:place] + source[place + len(BARRIER) :])


def threads(source: str, place: int) -> int:
    """The threads of a block of the kernel in which a place of a source lies; of the largest, where it is in none.

    A kernel without bounds has one thread.
    """
    begun = source.rfind("__global__", 0, place)
    bounds = [int(number) for number in re.findall(r"__launch_bounds__\((\d+)[,)]", source[max(begun, 0) :])]
    return max(bounds, default=1) if begun < 0 else next(iter(bounds), 1)
