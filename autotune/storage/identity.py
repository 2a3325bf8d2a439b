"""The identity of a process, which is never mistaken for another one with the same process id.

The kernel reuses process ids within days. With the start time in clock ticks since boot and the identifier of that
boot, a process id names one process for good.

This module reads `/proc` itself. psutil tells the start as a wall time, which moves when the clock is set, and to
import it would slow `status` down.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.errors import DamagedFile

_PROC = Path("/proc")
_BOOT_ID = "sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Identity:
    """One process of one boot of one machine.

    Attributes:
        host: The name of the machine.
        boot_id: The kernel's identifier of the boot; empty where there is no `/proc`.
        pid: The process id.
        start_time: In clock ticks since the boot; 0 where there is no `/proc`.
    """

    host: str
    boot_id: str
    pid: int
    start_time: int

    @classmethod
    def current(cls) -> Identity:
        """Return the identity of the calling process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of the process of this machine that has this id now, alive or a zombie.

        Raises:
            ProcessLookupError: There is none.
        """
        state, start_time = _state_and_start(pid)
        if not state and not _exists(pid):
            raise ProcessLookupError(f"no process has the id {pid}")
        return cls(socket.gethostname(), _boot_id(), pid, start_time)

    def alive(self) -> bool:
        """Return whether this very process still runs on this machine.

        A zombie does not run, nor does a process of an earlier boot. Processes of other machines cannot be seen and
        count as dead: where two machines share a folder, compare `host` first. `alive` itself compares hosts only
        where the boot is unknown, because a machine may be renamed while it runs.
        """
        boot_id = _boot_id()
        if self.boot_id != boot_id or (not boot_id and self.host != socket.gethostname()):
            return False
        state, start_time = _state_and_start(self.pid)
        if not state:  # no /proc, or a process that is hidden from us in it
            return _exists(self.pid)
        # A start time of 0 was not known when this was written.
        return state not in ("Z", "X") and self.start_time in (0, start_time)

    def stopped(self) -> bool:
        """Return whether this process is stopped, as by Ctrl-Z. It goes on at SIGCONT."""
        return self.alive() and _state_and_start(self.pid)[0] == "T"

    def to_json(self) -> dict[str, Any]:
        """Return the identity as JSON values, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Identity:
        """Return the identity that `to_json` was called on.

        Raises:
            DamagedFile: The value is not from `to_json`.
        """
        try:
            identity = cls(value["host"], value["boot_id"], value["pid"], value["start_time"])
        except (KeyError, TypeError) as error:
            raise DamagedFile(f"not the identity of a process: {value!r}") from error
        types = [type(value) for value in asdict(identity).values()]
        if types != [str, str, int, int]:
            raise DamagedFile(f"not the identity of a process: {value!r}")
        return identity


def runs(pid: int) -> bool:
    """Return whether a process of this machine has this id now. A zombie does not count."""
    try:
        return Identity.of(pid).alive()
    except ProcessLookupError:
        return False


def _boot_id() -> str:
    try:
        return (_PROC / _BOOT_ID).read_text("ascii").strip()
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    if pid <= 0:  # kill() would address a whole process group
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _state_and_start(pid: int) -> tuple[str, int]:
    """The letter of the state and the start time; "" and 0 where they cannot be read."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return "", 0
    # The second field, the command, may itself contain blanks and parentheses: start after its end.
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])
