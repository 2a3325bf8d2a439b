"""Ask the system to keep the tiles of AMX for this process: without them, the first of its instructions is fatal."""

from __future__ import annotations

import ctypes
import errno
import os

FLAG = "amx_tile"  # as `cpu_flags` names it

# `run.py`, which an export writes, has the source of these two functions in it.


def ask_for_tiles() -> int:
    """Ask for the tiles. The system then keeps them for all threads, and refuses stacks of signals that are too small.

    Returns:
        0, or the number of the error with which the system refuses.
    """
    system = ctypes.CDLL(None, use_errno=True)
    request = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    refused = system.syscall(*map(ctypes.c_long, request))
    return ctypes.get_errno() if refused else 0


def refusal(error: int) -> str:
    """Return why there are no tiles, and what to do. The C++ programs and `run.py` say the same.

    Args:
        error: What `ask_for_tiles` returned; empty text for 0.
    """
    if not error:
        return ""
    if error == errno.ENOSPC:
        return (
            "a thread of this process has an alternate signal stack (sigaltstack) that is too small for the tiles of"
            " AMX; load the library before that stack is set, or set one of 64 KiB"
        )
    return (
        f"the system refuses the tiles of AMX to this process ({os.strerror(error)}); allow arch_prctl and use Linux"
        " 5.16 or later, or export the model for a CPU without them"
    )
