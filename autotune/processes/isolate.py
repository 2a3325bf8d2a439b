"""Run work on items in forked processes, so that a crash or a hang costs only the item that caused it.

The child inherits everything that is loaded, so it needs no start-up. It works through the items and sends one
message for each. When it dies or an item exceeds its limit, the parent kills the child's process group, reports that
item, and forks again for the rest. The forking process must not have threads that hold locks.

An item may damage the memory of its child and so harm the items after it. With `retried`, an item that fails is
blamed only if it also fails in a child that has worked on no other item.

What a child has opened is lost with it. A `KeptChild` outlives a call of `isolated`, and works for the next one, too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, TypeVar

from autotune.errors import WorkerError
from autotune.processes.children import (
    OUT_OF_MEMORY_WORDS,
    REASON_LENGTH,
    Child,
    ItemResult,
    ResultKind,
    forked,
    refused,
    work_on,
)
from autotune.storage.atomic import write_all

T = TypeVar("T")

_LENGTH_BYTES = 8
_CHILD_IS_SPENT: tuple[ResultKind, ...] = ("crash", "timeout", "memory", "wrong")  # it works on no further item


def isolated(
    items: Sequence[T],
    prepare: Callable[[], Callable[[T], Any]],
    *,
    limit_s: float,
    prepare_limit_s: float = 120.0,
    retried: Collection[ResultKind] = (),
    kept: KeptChild | None = None,
) -> Generator[tuple[T, ItemResult], None, None]:
    """Yield every item with its result, in order.

    Args:
        prepare: Runs once in each child, and returns the function that works on an item. What that function returns
            must be JSON.
        limit_s: Seconds that one item may take.
        prepare_limit_s: Seconds that `prepare` may take.
        retried: Kinds of results that are not taken from a child that has worked on other items before, as those may
            be to blame. The item is then worked on once more in a fresh child.

    Raises:
        WorkerError: `prepare` failed, which is no item's fault.
        ProcessRefused, CommandMissing: The machine cannot work on an item, which is not the item's fault either.
    """
    done = 0
    while done < len(items):
        child, fresh = kept.take(items[done:], prepare) if kept else (_fork(items[done:], prepare), True)
        try:
            prepared = child.next_result(prepare_limit_s)
            if prepared.kind != "ok":
                raise WorkerError(f"cannot start work: {prepared.reason}")
            first = done
            while done < len(items):
                result = child.next_result(limit_s)
                if result.kind in _CHILD_IS_SPENT:
                    result = _end(child, result)
                if result.kind in retried and not (fresh and done == first):
                    break
                yield items[done], result
                done += 1
                if result.kind in _CHILD_IS_SPENT:
                    break
            if kept and not child.ended:
                kept.leave(child)
        finally:
            if not child.ended and not (kept and kept.has(child)):
                child.end()


def isolated_call(work: Callable[[], Any], *, limit_s: float) -> ItemResult:
    """Return the result of one piece of work in a forked process; it must be JSON."""
    ((_, result),) = isolated([None], lambda: lambda _: work(), limit_s=limit_s)
    return result


class KeptChild:
    """The child that calls of `isolated` share, one call after the other, with whatever it has opened.

    It runs on the CPUs of its caller. It dies with the process that made it.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._work = -1  # the pipe that it takes its work from

    def take(self, items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> tuple[Child, bool]:
        """Give items to the child, or to a new one where there is none. Returns it, and whether it is new."""
        content = pickle.dumps((os.sched_getaffinity(0), items, prepare))
        message = len(content).to_bytes(_LENGTH_BYTES, "big") + content
        if self._child is not None:
            child, self._child = self._child, None
            try:
                write_all(self._work, message)
                return child, False
            except BrokenPipeError:  # it died meanwhile
                child.end()
        return self._made(message), True

    def _made(self, message: bytes) -> Child:
        if self._work >= 0:
            os.close(self._work)
        try:
            reader, self._work = os.pipe()
        except OSError as error:
            raise refused(error) from error
        try:
            child = forked(lambda writer: _serve(reader, writer), self._work)
        finally:
            os.close(reader)
        write_all(self._work, message)
        return child

    def leave(self, child: Child) -> None:
        """Keep a child that is done with its items."""
        self._child = child

    def has(self, child: Child) -> bool:
        """Return whether this child is kept."""
        return self._child is child

    def end(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            child, self._child = self._child, None
            child.end()


def isolated_at_once(
    items: Sequence[T], prepare: Callable[[], Callable[[T], Any]], children: int, *, limit_s: float
) -> Generator[tuple[T, ItemResult], None, None]:
    """Yield every item with its result, from so many children that work at the same time.

    Args and Raises are those of `isolated`.
    """

    def work() -> Callable[[T | None], Any]:
        function = prepare()
        return lambda item: None if item is None else function(item)

    with contextlib.ExitStack() as stack:
        working = []
        for number in range(min(children, len(items))):
            share: list[T | None] = [None, *items[number::children]]
            child = stack.enter_context(contextlib.closing(isolated(share, work, limit_s=limit_s)))
            next(child)  # of no item: now it works on the others
            working.append(child)
        for child in working:
            for item, result in child:
                assert item is not None
                yield item, result


def _end(child: Child, result: ItemResult) -> ItemResult:
    """End a child that works on nothing more, and find out whether it crashed or hung for want of memory."""
    stderr = child.stderr_tail()
    peak = child.end()
    if result.kind not in ("crash", "timeout"):
        return result
    sys.stderr.write(stderr)
    if child.memory.spent(peak) or any(word in stderr for word in OUT_OF_MEMORY_WORDS):
        return ItemResult("memory", reason=f"{child.memory.exceeded}; {result.reason}")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return ItemResult(result.kind, reason=": ".join([result.reason, *lines[-1:]])[:REASON_LENGTH])


def _fork(items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> Child:
    return forked(lambda writer: work_on(writer, items, prepare))


def _serve(reader: int, writer: int) -> None:
    """Work on what `KeptChild.take` sends, until it closes the pipe."""
    with os.fdopen(reader, "rb") as source:
        while length := source.read(_LENGTH_BYTES):
            cpus, items, prepare = pickle.loads(source.read(int.from_bytes(length, "big")))
            os.sched_setaffinity(0, cpus)
            work_on(writer, items, prepare)
