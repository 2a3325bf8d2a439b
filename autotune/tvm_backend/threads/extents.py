"""Tell the thread pool how many iterations a parallel loop has, so that it can cut the loop into equal pieces.

And on how many threads at most, for a program that says so.
"""

from __future__ import annotations

from tvm import tirx

from autotune.tvm_backend.programs import with_body, with_items, with_llvm_code
from autotune.tvm_backend.types import PrimExpr, PrimFunc, Stmt

# The attribute of a tensor program that runs on fewer threads than there are.
MAX_THREADS = "autotune_threads"
_ANNOUNCE = "autotune_announce"
_ANNOUNCE_LIMITED = "autotune_announce_limited"
# The variables are those of pool.c, or, in a program that is run without the pool, such that nobody reads.
_CODE = f"""
@autotune_next_extent = weak hidden global i32 0, align 4
define void @{_ANNOUNCE}(i32 %extent) alwaysinline {{
  store atomic i32 %extent, ptr @autotune_next_extent monotonic, align 4
  ret void
}}
@autotune_next_threads = weak hidden global i32 0, align 4
define void @{_ANNOUNCE_LIMITED}(i32 %extent, i32 %threads) alwaysinline {{
  store atomic i32 %extent, ptr @autotune_next_extent monotonic, align 4
  store atomic i32 %threads, ptr @autotune_next_threads monotonic, align 4
  ret void
}}
"""


def announce_extents(function: PrimFunc) -> PrimFunc:
    """Insert a call before each parallel loop of a lowered program that passes its number of iterations to the pool."""
    threads = (function.attrs or {}).get(MAX_THREADS)
    body = _visit(function.body, [] if threads is None else [tirx.IntImm("int32", int(threads))])
    if body.same_as(function.body):
        return function
    return with_llvm_code(function, body, _CODE)


def _visit(statement: Stmt, limit: list[PrimExpr]) -> Stmt:
    match type(statement).__name__:
        case "SeqStmt":
            return with_items(statement, [_visit(item, limit) for item in statement.seq])
        case "For" if statement.kind == tirx.ForKind.PARALLEL:  # to the compiler, loops in it are serial in any case
            announce = _ANNOUNCE_LIMITED if limit else _ANNOUNCE
            call = tirx.call_extern("void", announce, statement.extent.astype("int32"), *limit)
            return tirx.SeqStmt([tirx.Evaluate(call), statement])
        case "AttrStmt" | "For":
            return with_body(statement, _visit(statement.body, limit))
    return statement
