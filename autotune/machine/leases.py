"""Leases on the CPUs and devices of this machine, shared by all workspaces and users.

One lock file for each resource, in one folder. A turnstile lock stands before them: whoever waits for several
resources holds it, so that no newcomer takes the ones that become free meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import Busy
from autotune.storage import locks
from autotune.storage.locks import Lease

_POLL_S = 0.05
_TURNSTILE = "turnstile"


def cpu_name(cpu: int) -> str:
    """The resource name of a CPU."""
    return f"cpu-{cpu}"


def lease(folder: Path, names: Iterable[str], wait_s: float) -> Lease:
    """Hold the named resources, all or none. No names: a lease on nothing.

    The kernel releases them when this process dies; its forked children do not hold them.

    Args:
        wait_s: how long to wait for them; negative: for ever.

    Raises:
        Busy: they were not free in time; names them.
        StorageError: the lock folder is unsafe or cannot be written.
    """
    locks.ensure_lock_folder(folder)
    paths = sorted({folder / f"{name}.lock" for name in names})
    deadline = None if wait_s < 0 else time.monotonic() + wait_s
    try:
        with locks.exclusive(folder / f"{_TURNSTILE}.lock", timeout_s=wait_s):
            while True:
                if held := locks.acquire_all(paths):
                    return held
                if deadline is not None and time.monotonic() >= deadline:
                    raise Busy("out of time")
                time.sleep(_POLL_S)
    except Busy as busy:  # the turnstile, which means nothing to the user, or the resources
        raise Busy(f"{_names(paths)} in use by another workspace") from busy


def lease_one(folder: Path, names: Iterable[str]) -> Lease:
    """Hold one of the named resources, whichever becomes free first; waits for ever.

    Raises:
        StorageError: the lock folder is unsafe or cannot be written.
    """
    locks.ensure_lock_folder(folder)
    paths = [folder / f"{name}.lock" for name in names]
    while True:
        with locks.exclusive(folder / f"{_TURNSTILE}.lock"):
            for path in paths:
                if held := locks.try_lock(path):
                    return held
        time.sleep(_POLL_S)


def _names(paths: list[Path]) -> str:
    return ", ".join(path.stem for path in paths)
