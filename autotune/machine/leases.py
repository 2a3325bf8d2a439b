"""Leases on the CPUs and devices of this machine, shared by all workspaces and users.

One folder has a lock file for each resource, and a turnstile lock. To lease anything, a process first takes the
turnstile. A process that waits for several resources keeps it, so that no newcomer takes those that become free.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import Busy
from autotune.machine.gpus import lock_name
from autotune.storage import locks
from autotune.storage.formats import SIMULATED
from autotune.storage.locks import Lease

_POLL_S = 0.05
_TURNSTILE = "turnstile"


def cpu_name(cpu: int) -> str:
    """Return the resource name of a CPU."""
    return f"cpu-{cpu}"


def resource_names(cpus: Iterable[int], device: str, *, simulated: bool, node: str = "") -> list[str]:
    """Return the resources that a stage leases: its CPUs, and the device of a measurement. `cpu` is its CPUs.

    Args:
        cpus: The CPUs.
        device: The device; empty for none.
        simulated: Whether the CPUs do not exist.
        node: The node of a cluster whose simulated CPUs and devices these are. Nodes on one machine share real ones.
    """
    own = f"-{node}" if node else ""
    names = [f"simcpu{own}-{cpu}" if simulated else cpu_name(cpu) for cpu in cpus]
    if device in ("", "cpu"):
        return names
    return [*names, f"{device}{own}" if device.startswith(f"{SIMULATED}:") else lock_name(device)]


def lease(folder: Path, names: Iterable[str], wait_s: float) -> Lease:
    """Lease all of the named resources, or none.

    The kernel releases them when this process dies. Its forked children do not hold them.

    Args:
        folder: The lock folder of this machine.
        names: The resources; none for a lease on nothing.
        wait_s: How many seconds to wait for them; a negative number to wait for ever.

    Returns:
        The lease, which ends with its `with` block.

    Raises:
        Busy: The resources were not free in time. The message names them.
        StorageError: The lock folder is unsafe or cannot be written.
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
    except Busy as busy:  # on the turnstile, which means nothing to the user, or on the resources
        raise Busy(f"{_names(paths)} in use by another workspace") from busy


def lease_one(folder: Path, names: Iterable[str]) -> Lease:
    """Lease one of the named resources, whichever becomes free first. Waits for ever.

    Args:
        folder: The lock folder of this machine.
        names: The resources.

    Returns:
        The lease, which ends with its `with` block.

    Raises:
        StorageError: The lock folder is unsafe or cannot be written.
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
