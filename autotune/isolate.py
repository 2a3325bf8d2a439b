"""Run work on items in forked processes, so that a crash or a hang costs the item that caused it only.

The child inherits everything loaded (no start-up), works through the items and sends one JSON line for
each. When it dies or an item exceeds its limit, the parent kills what is left of it, reports that item, and forks
again for the rest. The forking process must not have started threads that hold locks.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from autotune.errors import WorkerError

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """What became of an item: `value` where `kind` is `ok`, else a line that says what happened."""

    kind: Literal["ok", "error", "crash", "timeout"]
    value: Any = None
    reason: str = ""


@dataclass
class _Child:
    pid: int
    reader: int
    buffer: bytes = b""

    def line(self, limit_s: float) -> bytes | None:
        """The next line, b"" at the end of the stream, None when the limit ran out first."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                return None
            chunk = os.read(self.reader, 65536)
            if not chunk:
                return b""
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def end(self) -> int:
        """Kill the child and everything in its group; returns the signal that ended it, or 0."""
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reader)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that forked it dies. No effect outside Linux."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def isolated(
    items: Sequence[T],
    prepare: Callable[[], Callable[[T], Any]],
    *,
    limit_s: float,
    prepare_limit_s: float = 120.0,
) -> Iterator[tuple[T, Outcome]]:
    """Yield every item with its outcome, in order.

    Args:
        prepare: runs once in each child and returns the function that works on an item; what that returns
            has to be JSON.
        limit_s: seconds that one item may take.
        prepare_limit_s: seconds that `prepare` may take.

    Raises:
        WorkerError: `prepare` failed, which is no item's fault.
    """
    done = 0
    while done < len(items):
        child = _fork(items[done:], prepare)
        try:
            prepared = _outcome(child, prepare_limit_s)
            if prepared.kind != "ok":
                raise WorkerError(f"cannot start work: {prepared.reason}")
            while done < len(items):
                outcome = _outcome(child, limit_s)
                yield items[done], outcome
                done += 1
                if outcome.kind in ("crash", "timeout"):
                    break
        finally:
            child.end()


def _outcome(child: _Child, limit_s: float) -> Outcome:
    line = child.line(limit_s)
    if line is None:
        return Outcome("timeout", reason=f"killed after {limit_s:g} s")
    if line == b"":
        return Outcome("crash", reason=_ending(child.pid))
    return Outcome(**json.loads(line))


def _ending(pid: int) -> str:
    """How the child ended, leaving it to be reaped."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if info is not None and info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
        return f"killed by {signal.Signals(info.si_status).name}"
    return f"exited with {info.si_status if info else '?'}"


def _fork(items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(pid, reader)
    try:
        os.setpgid(0, 0)
        die_with_parent()
        os.close(reader)
        _work(writer, items, prepare)
    finally:
        os._exit(0)


def _work(writer: int, items: Sequence[T], prepare: Callable[[], Callable[[T], Any]]) -> None:
    try:
        function = prepare()
    except BaseException as error:
        return _send(writer, Outcome("error", reason=_line(error)))
    _send(writer, Outcome("ok"))
    for item in items:
        try:
            outcome = Outcome("ok", function(item))
        except BaseException as error:
            outcome = Outcome("error", reason=_line(error))
        _send(writer, outcome)


def _send(writer: int, outcome: Outcome) -> None:
    data = json.dumps(outcome.__dict__).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
