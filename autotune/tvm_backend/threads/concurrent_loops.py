"""Run kernels beside each other: their parallel loops become one, of which each thread takes pieces of all kernels.

A small kernel leaves most threads of a large machine idle, and each kernel waits until the one before it has ended. So
kernels that need nothing of each other are joined to one program, and when it is lowered, its loops to one: Ma et al.,
"Rammer" (OSDI 2020) calls that inter-operator parallelism. A kernel has a share of the pieces by its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, renew_defs

from autotune.tvm_backend.programs import replaced
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.types import Loop, PrimExpr, PrimFunc, Stmt

# The attribute of a joined kernel with those that it consists of: the name of each, and how many arguments it has.
JOINED = "autotune_joined"
# The annotation of the loop of a kernel that runs beside others: in how many pieces it is cut at most.
_PIECES = "autotune_pieces"
_MAX_PIECES = 2**15  # of a loop without limits
_PIECES_OF_THREAD = 8  # as in pool.c, which gives out single iterations of a loop of fewer than twice as many
_ATTRS = ("s_tir", "tirx.is_scheduled", "tirx.noalias")


def joined(names: Sequence[str], programs: Sequence[PrimFunc], work: Sequence[float], threads: int) -> PrimFunc:
    """Return one program that does what some scheduled programs do, beside each other if their loops allow it.

    Each has to be one parallel loop, or to have none.

    Args:
        names: What the programs are called.
        programs: The programs. None may need what another one writes.
        work: How long each takes, in any unit.
        threads: On how many threads they will run.

    Returns:
        The program, with the parameters of all one after another, and the attribute `JOINED`.
    """
    own = [renew_defs(program) for program in programs]  # the same program may be there twice
    roots = [program.body.block for program in own]
    shares = [max(1, round(_PIECES_OF_THREAD * threads * item / (sum(work) or 1.0))) for item in work]
    pieces = [min(share, _most_pieces(program)) for share, program in zip(shares, own, strict=True)]
    loops = [_loop(root.body, count) for root, count in zip(roots, pieces, strict=True)]
    bodies = [root.body for root in roots] if None in loops else loops
    buffers = list(chain.from_iterable(root.alloc_buffers for root in roots))
    block = SBlock([], [], [], "root", tirx.SeqStmt(bodies), alloc_buffers=buffers)
    parameters = list(chain.from_iterable(program.params for program in own))
    program = tirx.PrimFunc(parameters, SBlockRealize([], tirx.IntImm("bool", 1), block))
    common = {key: own[0].attrs[key] for key in _ATTRS if all(key in (item.attrs or {}) for item in own)}
    members = [[name, len(item.params)] for name, item in zip(names, own, strict=True)]
    return program.with_attr({**common, JOINED: members})


def _most_pieces(program: PrimFunc) -> int:
    """Return in how many pieces a program may be cut: for each thread that it may use one, if those are limited."""
    return int((program.attrs or {}).get(MAX_THREADS, _MAX_PIECES))


def _loop(body: Stmt, count: int) -> Loop | None:
    """Return what a program does as a loop that can be joined with others; None if it has several parallel loops."""
    pieces = {_PIECES: tirx.IntImm("int32", count)}
    if isinstance(body, tirx.For) and body.kind == tirx.ForKind.PARALLEL and isinstance(body.extent, tirx.IntImm):
        return tirx.For(body.loop_var, body.min, body.extent, body.kind, body.body, None, pieces)
    kinds = list[int]()
    tvm_ffi.structural_walk(body, ((tirx.For, lambda loop: kinds.append(int(loop.kind))),))
    if int(tirx.ForKind.PARALLEL) in kinds:
        return None
    once = tirx.Var("once", "int64")
    zero, one = (tirx.IntImm("int64", value) for value in (0, 1))
    return tirx.For(once, zero, one, tirx.ForKind.PARALLEL, body, None, pieces)


def join_loops(function: PrimFunc) -> PrimFunc:
    """Make one loop of those that `joined` has put one after another in a program, when it is lowered."""
    if JOINED not in (function.attrs or {}):
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, ((tirx.SeqStmt, _sequence),)))


def _sequence(sequence: Stmt) -> Stmt:
    statements = list[Stmt]()
    for beside, group in groupby(sequence.seq, _is_beside):
        alike = list(group)
        statements += [_one_loop(alike)] if beside else alike
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _is_beside(statement: Stmt) -> bool:
    return isinstance(statement, tirx.For) and _PIECES in statement.annotations


def _one_loop(loops: Sequence[Loop]) -> Stmt:
    """Return a parallel loop over the pieces of all loops."""
    cut = list(map(_cut, loops))
    piece = tirx.Var("piece", "int32")
    first = sum(int(loop.extent) for loop in cut)
    total = _number(first, piece)
    body: Stmt | None = None
    for loop in reversed(cut):
        end = first
        first -= int(loop.extent)
        own_piece = (piece - _number(first, piece)).astype(str(loop.loop_var.ty.dtype))
        own = replaced(loop.body, loop.loop_var, own_piece)
        body = own if body is None else tirx.IfThenElse(piece < _number(end, piece), own, body)
    return tirx.For(piece, _number(0, piece), total, tirx.ForKind.PARALLEL, body)


def _cut(loop: Loop) -> Loop:
    """Cut a loop into its pieces, as equal as can be: the iterations of each are a loop of their own."""
    extent = int(loop.extent)
    count = min(extent, int(loop.annotations[_PIECES]))
    piece = tirx.Var("piece", loop.loop_var.ty)
    begin, end = (
        tirx.floordiv(item * _number(extent, piece), _number(count, piece))
        for item in (piece, piece + _number(1, piece))
    )
    iterations = tirx.For(loop.loop_var, loop.min + begin, end - begin, tirx.ForKind.SERIAL, loop.body)
    return tirx.For(piece, _number(0, piece), _number(count, piece), tirx.ForKind.PARALLEL, iterations)


def _number(value: int, like: PrimExpr) -> PrimExpr:
    return tirx.IntImm(str(like.ty.dtype), value)
