"""Prefetch the weights that a kernel needs next, while it uses the current ones again.

In a whole model, weights come from memory: other kernels have run since they were last used. A CPU fetches a stream
ahead by itself, but only within a page of 4 KiB, and only once it has seen that the stream is read. So a kernel that
computes many pixels with the same block of weights waits for the block in the first pass, and leaves the memory idle
in the others.

Here each pass fetches a share of the next block into the caches, a few lines at a time. What is computed stays the
same bit for bit. Where the blocks lie is read off the lowered program: its
indices are expressions of the variables of loops, which can be evaluated.

As far as LLVM knows, its own prefetch may read the sums, so it would write them to memory first. An instruction of
inline assembly that touches no memory leaves them in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import tirx

from autotune.tvm_backend.codegen.index_values import Index
from autotune.tvm_backend.programs import with_body, with_items, with_llvm_code
from autotune.tvm_backend.types import Buffer, PrimExpr, PrimFunc, Stmt

_FUNCTION = "autotune_prefetch"
_EFFECT = "nounwind willreturn memory(inaccessiblemem: readwrite)"
_ASSEMBLY = f"""
define void @{_FUNCTION}(ptr %address) alwaysinline {_EFFECT} {{{{
  call void asm sideeffect "{{instruction}}", "*m"(ptr elementtype(i8) %address) {_EFFECT}
  ret void
}}}}
"""
_LINE = 16  # elements of a line in the cache; all computation on CPUs is in float32
_AHEAD = 65536  # elements that are used before those that are fetched, at most: 256 KiB, a part of the L2 cache
_REPEATED = 2  # how often a line is fetched at most, in as many passes
_LOOKED_AT = 4096  # iterations of a loop, at most


def prefetch_weights(function: PrimFunc, instruction: str) -> PrimFunc:
    """Insert prefetches into a lowered program: its buffers are flat, and its innermost loops are vectors.

    Args:
        instruction: In assembly, what fetches the line of `$0`.
    """
    body, _ = _Prefetcher().visit(function.body)
    if body.same_as(function.body):
        return function
    return with_llvm_code(function, body, _ASSEMBLY.format(instruction=instruction))


@dataclass(frozen=True, eq=False)
class _Loop:
    variable: PrimExpr
    extent: int


@dataclass(frozen=True)
class _Stream:
    """Vectors of weights, each of which is multiplied by a single element."""

    buffer: Buffer
    starts: tuple[Index, ...]  # where each vector begins
    lanes: int  # how many elements it has
    inner: tuple[_Loop, ...] = ()  # the loops around the vectors that the walk has left, from outside in

    @property
    def size(self) -> int:
        """Elements that are read in one pass through the inner loops."""
        return len(self.starts) * self.lanes * math.prod(loop.extent for loop in self.inner)

    def joins(self, other: _Stream) -> bool:
        """Whether another stream reads the same buffer in the same loops."""
        return self.buffer.same_as(other.buffer) and self.inner == other.inner

    def lines(self, loops: Sequence[_Loop]) -> set[int]:
        """Return the lines that are read in one pass through some inner loops while all others are at zero."""
        numbers = np.ix_(*(np.arange(loop.extent) for loop in loops))
        values = _Values(zip((loop.variable for loop in loops), numbers, strict=True))
        lines = set[int]()
        for start in self.starts:
            positions = np.unique(start.value(values))
            first = positions // _LINE
            last = (positions + self.lanes - 1) // _LINE
            for further in range(int((last - first).max()) + 1):
                lines.update(np.minimum(first + further, last).tolist())
        return lines


class _Values(dict[PrimExpr, Any]):
    """The values of some variables, each a number or an array of them, and zero for all others."""

    def __missing__(self, _variable: PrimExpr) -> int:
        return 0


@dataclass(frozen=True)
class _Group:
    """Neighbouring lines that are read in one pass through some inner loops: the first, and how many."""

    loops: tuple[_Loop, ...]
    first: int
    lines: int


@dataclass(frozen=True)
class _Following:
    """The weights that are used after the current ones.

    Attributes:
        distance: How many elements lie between the two.
        runs: The loops that read the current weights several times, from inside out, with how many iterations in a row
            do so.
    """

    distance: int
    runs: tuple[tuple[_Loop, int], ...]

    @property
    def passes(self) -> int:
        """How often the current weights are read before the following ones."""
        return math.prod(run for _, run in self.runs)

    def part(self, lines: int) -> tuple[PrimExpr, int]:
        """Return the first of the lines that the current pass fetches, and how many it fetches."""
        turn: PrimExpr = 0
        for loop, run in reversed(self.runs):
            turn = turn * run + (loop.variable if run == loop.extent else tirx.floormod(loop.variable, run))
        if lines < self.passes:
            return tirx.floordiv(turn * lines, self.passes), 1
        share = -(-lines // self.passes)
        return turn * share, share


@dataclass
class _Prefetcher:
    """Walks through a function, and inserts prefetches on the way out of its loops.

    Attributes:
        loops: The loops around the current statement, from outside in.
        values: What variables stand for that are not those of loops.
        own: The buffers of the function itself, which hold no weights.
    """

    loops: list[_Loop] = field(default_factory=list)
    values: dict[PrimExpr, PrimExpr] = field(default_factory=dict)
    own: set[Buffer] = field(default_factory=set)

    def visit(self, statement: Stmt) -> tuple[Stmt, list[_Stream]]:
        """Return a statement with prefetches, and the streams in it that are not prefetched yet."""
        match type(statement).__name__:
            case "SeqStmt":
                visited = [self.visit(item) for item in statement.seq]
                streams = _joined(stream for _, streams_of_item in visited for stream in streams_of_item)
                return with_items(statement, [item for item, _ in visited]), streams
            case "AttrStmt":
                body, streams = self.visit(statement.body)
                return with_body(statement, body), streams
            case "For":
                return self._loop(statement)
            case "BufferStore":
                return statement, self._streams(statement.value)
            case "Bind":
                self.values[statement.var] = statement.value
            case "AllocBuffer":
                self.own.add(statement.buffer)
        return statement, []

    def _streams(self, value: PrimExpr) -> list[_Stream]:
        """Return the stream of a sum to which the product of a vector and a single element is added."""
        for load in _vectors(value):
            start = Index.read(load.indices[0].base, self.values)
            if start is not None and load.source not in self.own:
                return [_Stream(load.source, (start,), int(load.indices[0].lanes))]
        return []

    def _loop(self, statement: Stmt) -> tuple[Stmt, list[_Stream]]:
        if type(statement.extent).__name__ != "IntImm":
            return statement, []
        loop = _Loop(statement.loop_var, int(statement.extent))
        self.loops.append(loop)
        body, streams = self.visit(statement.body)
        left = []
        for stream in streams:
            if stream.inner and self._run(stream, loop) > 1:
                body = self._prefetched(body, stream)
            else:
                left.append(replace(stream, inner=(loop, *stream.inner)))
        self.loops.pop()
        return with_body(statement, body), left

    def _positions(self, stream: _Stream, loop: _Loop) -> list[int]:
        """Return where a stream begins in each iteration of a loop, in elements; in all other loops it is the first."""
        numbers = np.arange(min(loop.extent, _LOOKED_AT))
        positions = stream.starts[0].value(_Values({loop.variable: numbers}))
        return list[int](np.broadcast_to(positions, numbers.shape).tolist())

    def _run(self, stream: _Stream, loop: _Loop) -> int:
        """Return how many iterations of a loop in a row read the same weights."""
        positions = self._positions(stream, loop)
        return next((number for number, position in enumerate(positions) if position != positions[0]), loop.extent)

    def _prefetched(self, body: Stmt, stream: _Stream) -> Stmt:
        """Insert the prefetches of a stream into the body of the current loop."""
        following = self._following(stream)
        group = _group(stream, following.passes) if following else None
        if following is None or group is None:
            return body
        line, share = following.part(group.lines)
        start = stream.starts[0]
        offset = group.first * _LINE - start.value(_Values()) + following.distance
        address = start.at_zero([loop.variable for loop in group.loops]) + offset + line * _LINE
        left = [loop for loop in stream.inner if loop not in group.loops]
        fetches = [_fetch(stream.buffer, address + number * _LINE) for number in range(share)]
        return _begun(body, left[-1] if left else None, fetches)

    def _following(self, stream: _Stream) -> _Following | None:
        """Find the weights that are used after the current ones; None if there are none, or they are found already.

        The loop that moves on to them is the outermost one in which all weights of an iteration fit the cache.
        """
        following = None
        size = stream.size
        runs = list[tuple[_Loop, int]]()
        again = 1
        for loop in reversed(self.loops):
            positions = self._positions(stream, loop)
            run = self._run(stream, loop)
            again *= loop.extent // (run * len(set(positions)))
            if run > 1:
                runs.append((loop, run))
            if run == loop.extent:
                continue
            if following is None or size <= _AHEAD:
                following = _Following(positions[run] - positions[0], tuple(runs))
                again = 1
            size *= len(set(positions))
        return following


def _group(stream: _Stream, passes: int) -> _Group | None:
    """Choose which lines the passes share: as few as possible, so that each pass fetches few at a time.

    Returns:
        None if what is read lies scattered.
    """
    group = None
    for depth in range(len(stream.inner), -1, -1):
        loops = stream.inner[depth:]
        if math.prod(loop.extent for loop in loops) > _LOOKED_AT:
            break
        lines = stream.lines(loops)
        if max(lines) - min(lines) + 1 == len(lines):
            group = _Group(loops, min(lines), len(lines))
        if group is not None and _REPEATED * group.lines >= passes:
            return group
    return None


def _fetch(buffer: Buffer, index: PrimExpr) -> Stmt:
    address = tirx.address_of(tirx.BufferLoad(buffer, [index]))
    return tirx.Evaluate(tirx.call_extern("void", _FUNCTION, address))


def _vectors(value: PrimExpr) -> list[PrimExpr]:
    """Return the loads of vectors in a sum that a vector times a single element is added to."""
    products = [term for term in (value.a, value.b) if _is(term, "Mul")] if _is(value, "Add") else []
    pairs = [pair for product in products for pair in ((product.a, product.b), (product.b, product.a))]
    loads = [load for single, load in pairs if _is(single, "Broadcast") and _is(load, "TensorLoad")]
    return [load for load in loads if len(load.indices) == 1 and _is(load.indices[0], "Ramp")]


def _is(node: object, kind: str) -> bool:
    return type(node).__name__ == kind


def _joined(streams: Iterable[_Stream]) -> list[_Stream]:
    """Make one stream of those that read the same buffer in the same loops."""
    joined: list[_Stream] = []
    for stream in streams:
        place = next((place for place, other in enumerate(joined) if other.joins(stream)), None)
        if place is None:
            joined.append(stream)
        else:
            joined[place] = replace(joined[place], starts=joined[place].starts + stream.starts)
    return joined


def _begun(statement: Stmt, loop: _Loop | None, first: list[Stmt]) -> Stmt:
    """Return a statement that does something first, or in which a loop does so in each iteration."""
    if loop is None:
        return tirx.SeqStmt([*first, statement])
    if _is(statement, "SeqStmt"):
        return with_items(statement, [_begun(item, loop, first) for item in statement.seq])
    if _is(statement, "For") or _is(statement, "AttrStmt"):
        is_it = _is(statement, "For") and statement.loop_var.same_as(loop.variable)
        return with_body(statement, _begun(statement.body, None if is_it else loop, first))
    return statement
