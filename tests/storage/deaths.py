"""A process that dies at one of its system calls."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("open", "write", "fsync", "close", "replace", "rename", "unlink", "link", "truncate", "ftruncate")


def in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a child, and return how it ended: 0, 1 after an error, or -signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_call(number: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that is killed at its n-th system call; whether it came to that."""

    def act() -> None:
        die_at_call(number)
        action()

    return in_child(act) == -signal.SIGKILL


def die_at_call(number: int) -> None:
    """Make the n-th system call of this process its last; half of a write still arrives."""
    left = number

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
