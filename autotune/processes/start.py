"""Start processes, and say what helps where the system refuses to."""

from __future__ import annotations

import errno
import os

from autotune.errors import ProcessRefused

_ADVICE = {
    errno.EMFILE: "raise the open file limit (ulimit -n)",
    errno.ENFILE: "end programs that keep many files open",
    errno.ENOMEM: "end programs that need much memory",
}
_REFUSALS = (errno.EAGAIN, *_ADVICE)


def fork() -> int:
    """Fork this process, as `os.fork` does.

    Raises:
        ProcessRefused: The system refuses.
    """
    try:
        return os.fork()
    except OSError as error:
        raise refused(error) from error


def is_refusal(error: OSError) -> bool:
    """Return whether the system had no process, no memory or no file left, so that it is not the program's fault."""
    return error.errno in _REFUSALS


def refused(error: OSError) -> ProcessRefused:
    """Return the error to raise where no process, or no pipe to it, can be had."""
    advice = _ADVICE.get(error.errno or 0, "end some, or raise their limit (ulimit -u)")
    reason = error.strerror or str(error)
    return ProcessRefused(f"this machine starts no more processes ({reason[:1].lower()}{reason[1:]}); {advice}")
