"""Find what a power failure could lose in a recorded run: data that was relied on before it was durable.

SIGKILL does not clear the page cache, so no kill reveals a missing fsync. This module reads the order of the recorded
steps instead. Its model of the storage grants only what POSIX guarantees, in the spirit of ALICE (Pillai et al., "All
File Systems Are Not Created Equal", OSDI 2014): the content of a file is durable when the file was synced, and a name
that was made, moved or removed is durable when its folder was synced. The rules:

1. A file is renamed only when its whole content is durable. A folder is renamed only when everything in it is.
2. A published file is only appended to, never overwritten in place.
3. A process makes everything durable that it wrote, made, moved or removed, before another process can rely on it:
   before it writes to a pipe, releases a lock or ends. Exceptions are what may be lost: locks, temporary files,
   unpublished jobs, built libraries, indexes, text for people, the note of the candidate that a stage works on, and the
   file that says who the daemon is.
4. A stage logs no trial after it has published the next stage.
5. Rows are added to an index only when the records that they are about are durable.

Limits: of a file that `open()` opens, only the opening is recorded, and it counts as a write. What a linker writes is
not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

_PASSING = re.compile(r"(^|/)\.(tmp|incoming)-")
_MAY_BE_LOST = re.compile(
    r"\.lock$|/locks$|/artifacts(/|$)|/worker-[^/]*\.log(\.\d+)?$|/\.daemon\.json$|/daemon\.log(\.\d+)?$|\.index$"
    r"|/stages/\.t\d+-r\d+\.now$"
)
_STAGE_FILE = re.compile(r"/stages/t\d+-r\d+\.json$")
_LEASE = re.compile(r"/locks/[^/]*\.lock$")
_TUNING_LOG = re.compile(r"/logs/tuning/.*\.jsonl$")


def violations(trace: Iterable[dict[str, Any]]) -> list[str]:
    """Find the violations of the rules in a recorded run.

    Args:
        trace: The recorded steps, in order.

    Returns:
        A line for each kind of violation.
    """
    disk = _Disk()
    for entry in trace:
        role, call, phase, kind = entry["site"].split(" ", 3)
        if call in ("tell", "exit"):
            disk.told(entry["pid"], f"{role} {'ended' if call == 'exit' else 'told another process'}")
        elif phase == "after" or entry.get("unseen"):
            disk.did(role, call, kind, entry)
    return list(dict.fromkeys(disk.violations))


@dataclass
class _Disk:
    """The state of the disk: which contents and names are not durable yet, and which process changed them.

    Attributes:
        contents: Files whose content is not durable, with the process id of the last writer.
        names: Folders with names that are not durable, with the process id that made, moved or removed each name.
        in_place: Files that are open for overwriting.
        followed: The next stage file that a process has published, by process id.
        violations: Those so far.
    """

    contents: dict[str, int] = field(default_factory=dict)
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    in_place: set[str] = field(default_factory=set)
    followed: dict[int, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def did(self, role: str, call: str, kind: str, entry: dict[str, Any]) -> None:
        path = entry["path"]
        pid = entry["pid"]
        if call == "open":
            self._opened(role, kind, path, pid, entry)
        elif call in ("write", "truncate", "ftruncate"):
            self._wrote(role, call, kind, path, pid)
        elif call in ("fsync", "fdatasync"):
            self.contents.pop(path, None)
            self.names.pop(path, None)
        elif call in ("rename", "replace"):
            self._renamed(role, kind, entry["source"], path, pid)
        elif call in ("mkdir", "link"):
            self._named(path, pid)
        elif call in ("unlink", "remove", "rmdir"):
            self._removed(path, pid)
        elif call == "flock" and entry.get("unlock"):
            self.told(pid, f"{role} let go of a lock")
        elif call == "flock" and _LEASE.search(path):  # a process may run several stages, which begin with leases
            self.followed.pop(pid, None)

    def _opened(self, role: str, kind: str, path: str, pid: int, entry: dict[str, Any]) -> None:
        if entry.get("new"):
            self._named(path, pid)
        (self.in_place.discard if entry.get("append") else self.in_place.add)(path)
        if entry.get("unseen"):  # a file that is opened for writing counts as written
            self._wrote(role, "write", kind, path, pid)

    def _wrote(self, role: str, call: str, kind: str, path: str, pid: int) -> None:
        self.contents[path] = pid
        if call == "write" and path in self.in_place and _matters(path):
            self.violations.append(f"{role} wrote {kind} in place")
        if call == "write" and path.endswith(".index") and self.contents.get(f"{path[:-6]}.jsonl") == pid:
            self.violations.append(f"{role} wrote {kind} before its log was durable")
        if call == "write" and _TUNING_LOG.search(path) and pid in self.followed:
            self.violations.append(f"{role} logged a trial after it had published what follows")

    def _renamed(self, role: str, kind: str, source: str, path: str, pid: int) -> None:
        if _matters(path):
            if any(_within(other, source) for other in self.contents):
                self.violations.append(f"{role} published {kind} before its content was durable")
            if any(_within(folder, source) for folder in self.names):
                self.violations.append(f"{role} published {kind} before the names in it were durable")
        _move(self.contents, source, path)
        _move(self.names, source, path)
        self.names.get(_folder(source), {}).pop(source, None)
        self._named(path, pid)
        if role == "stage" and _STAGE_FILE.search(path):
            self.followed[pid] = path

    def _named(self, path: str, pid: int) -> None:
        self.names.setdefault(_folder(path), {})[path] = pid

    def _removed(self, path: str, pid: int) -> None:
        self.contents.pop(path, None)
        self.names.pop(path, None)
        self._named(path, pid)

    def told(self, pid: int, how: str) -> None:
        """Record that other processes may now rely on everything that a process did."""
        for path, writer in list(self.contents.items()):
            if writer == pid and _matters(path):
                self.violations.append(f"{how} before the content of {_plain(path)} was durable")
                del self.contents[path]
        for changed in self.names.values():
            for path, changer in list(changed.items()):
                if changer == pid and _matters(path):
                    self.violations.append(f"{how} before the name {_plain(path)} was durable")
                    del changed[path]


def _move(pending: dict[str, Any], source: str, path: str) -> None:
    for other in [other for other in pending if _within(other, source)]:
        pending[path + other[len(source) :]] = pending.pop(other)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _plain(path: str) -> str:
    """Return the last two parts of a path without numbers, so that equal violations give equal lines."""
    return re.sub(r"\d+", "#", "/".join(PurePosixPath(path).parts[-2:]))


def _matters(path: str) -> bool:
    return not (_PASSING.search(path) or _MAY_BE_LOST.search(path))
