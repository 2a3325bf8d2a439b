"""Processes that take locks beside a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from autotune.storage.locks import (
    try_lock,
)


class Child:
    """A forked child that runs ``action``, says what came of it, and then lives until killed."""

    def __init__(self, action: Callable[[], object]) -> None:
        hear, say = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                kept = action()
                os.write(say, str(kept).encode())
                signal.alarm(20)  # should the test fail and forget it
                signal.pause()
            except BaseException as error:
                os.write(say, repr(error).encode())
            finally:
                os._exit(1)
        os.close(say)
        self.said = os.read(hear, 1000).decode()
        os.close(hear)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        os.waitpid(self.pid, 0)


def is_free(path: Path) -> bool:
    """Whether another process could take the lock."""

    def probe() -> bool:
        return try_lock(path) is not None

    child = Child(probe)
    child.kill()
    assert child.said in ("True", "False")
    return child.said == "True"


def forked(action: Callable[[], object]) -> str:
    """What a forked child says of an action."""
    child = Child(action)
    child.kill()
    return child.said
